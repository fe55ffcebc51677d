"""The data and the networks: plain scikit-learn, which knows nothing of Flows.

Everything here depends on its arguments alone. That makes a training that was resumed end as one that was not.
scikit-learn is imported where it is used: what only answers an RPC, or decides who goes on, needs none of it.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.pipelines.files import write_whole

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

PARTS = {"train": slice(0, 1_000), "choose": slice(1_000, 1_400), "test": slice(1_400, None)}
"""What networks learn from; by what they are chosen; what nobody has looked at until the end."""


@dataclass(frozen=True)
class Candidate:
    number: int
    hidden: int
    rate: float

    def __str__(self) -> str:
        return f"candidate {self.number:02} ({self.hidden} hidden, rate {self.rate})"


def candidates() -> list[Candidate]:
    """Twenty: four sizes with five learning rates each."""
    grid = [(hidden, rate) for hidden in (8, 16, 32, 64) for rate in (0.001, 0.003, 0.01, 0.03, 0.1)]
    return [Candidate(number, hidden, rate) for number, (hidden, rate) in enumerate(grid, 1)]


class Digits:
    """How candidates learn. A Flow gets one of these; put your own model in its place."""

    def prepare(self, path: Path) -> int:
        """Writes the data, scaled and shuffled, to a file: how many pictures there are."""
        from sklearn.datasets import load_digits

        digits: Any = load_digits()
        order = np.random.default_rng(7).permutation(len(digits.target))
        pictures, labels = (digits.data / 16.0)[order], digits.target[order]

        def write(partial: Path) -> None:
            with partial.open("wb") as file:
                np.savez(file, pictures=pictures, labels=labels)

        write_whole(path, write)
        return len(labels)

    def load(self, data: Path, part: str) -> tuple[Any, Any]:
        """The pictures and the labels of a part."""
        with np.load(data) as arrays:
            return arrays["pictures"][PARTS[part]], arrays["labels"][PARTS[part]]

    def begin(self, candidate: Candidate) -> MLPClassifier:
        from sklearn.neural_network import MLPClassifier

        return MLPClassifier((candidate.hidden,), learning_rate_init=candidate.rate, random_state=candidate.number)

    def epoch(self, candidate: Candidate, network: MLPClassifier, pictures: Any, labels: Any) -> None:
        network.partial_fit(pictures, labels, classes=np.arange(10))


def save(network: MLPClassifier, path: Path) -> None:
    write_whole(path, lambda partial: partial.write_bytes(pickle.dumps(network)))


def load(path: Path) -> MLPClassifier:
    """A network that we saved. What others can write must not be read like this: unpickling runs code."""
    network: MLPClassifier = pickle.loads(path.read_bytes())
    return network
