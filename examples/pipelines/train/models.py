"""A registry of models in a folder: a folder with network and card for each, and a file that says which one is in use.

    models/digits-1/network.pickle
    models/digits-1/card.json
    models/released.json

Registering and releasing the same model again changes nothing, so the Steps that do it may run twice.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from examples.pipelines.files import write_json, write_whole


@dataclass(frozen=True)
class Card:
    """What people want to know of a model. scores: the part of the pictures that it reads rightly."""

    name: str
    about: str
    epochs: int
    score_when_chosen: float
    score_in_test: float


@dataclass(frozen=True)
class Models:
    folder: Path

    def network(self, name: str) -> Path:
        return self.folder / name / "network.pickle"

    def register(self, card: Card, network: Path) -> None:
        """The card comes last: a model with a card is whole."""
        write_whole(self.network(card.name), lambda partial: shutil.copyfile(network, partial))
        write_json(self.folder / card.name / "card.json", card)

    def card(self, name: str) -> Card:
        return Card(**json.loads((self.folder / name / "card.json").read_text()))

    def release(self, name: str, by: str) -> None:
        write_json(self.folder / "released.json", {"name": name, "by": by})

    def released(self) -> str | None:
        """The name of the model in use."""
        path = self.folder / "released.json"
        return str(json.loads(path.read_text())["name"]) if path.exists() else None
