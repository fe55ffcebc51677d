"""`python -m examples.pipelines.train`: see the package."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import dexray
from dex import Client, LongPollTimeoutError, StartFlowOptions
from examples.pipelines.train.flow import Epoch, Plan, flow, progress, registry, stage
from examples.pipelines.train.models import Models


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.pipelines.train", description="Train a model for digits.")
    parser.add_argument("--demo", action="store_true", help="in a temporary folder, and approve the model at the end")
    parser.add_argument("--folder", default="models", help="for data, checkpoints and models (default: models)")
    parser.add_argument("--id", default="", help="of the Flow: the name of the model; the same one goes on")
    parser.add_argument("--decide", choices=("yes", "no"), help="whether the model is released")
    given = parser.parse_args(arguments)
    name = given.id or f"digits-{uuid4().hex[:8]}"
    with _folder(given.demo, given.folder) as folder, dexray.connect(registry) as client:
        client.start_flow(flow, name, Plan(str(folder)), StartFlowOptions(ignore_already_started=True))
        _watch(client, name)
        card = Models(folder).card(name)
        print(f"{name}: {card.about}, {card.epochs} epochs, reads {card.score_in_test:.1%} of the test rightly")
        if not (decided := "yes" if given.demo else given.decide):
            print(f"waits for approval: python -m examples.pipelines.train --folder {folder} --id {name} --decide yes")
            return
        print(client.invoke_rpc(flow.decide, name, (decided == "yes", "Ada")))
        print(client.wait_for_flow(name).single_output(str))
        print(f"in use: {Models(folder).released()}")


@contextmanager
def _folder(is_demo: bool, folder: str) -> Iterator[Path]:
    if not is_demo:
        yield Path(folder).absolute()
        return
    with tempfile.TemporaryDirectory(prefix="digits-") as temporary:
        yield Path(temporary)


def _watch(client: Client, name: str) -> None:
    """Prints how far each candidate comes, until the model is registered."""
    token, done = "", False
    while not done:
        done = _is_registered(client, name)
        try:
            while True:
                message = client.read_stream(name, progress, token, timedelta(milliseconds=200))
                token = message.resume_token
                print(_line(message.value))
        except LongPollTimeoutError:
            continue


def _is_registered(client: Client, name: str) -> bool:
    return client.get_attribute(name, stage) not in (None, "first round", "finals")


def _line(epoch: Epoch) -> str:
    bar = "█" * round(epoch.score * 40)
    return f"candidate {epoch.candidate:02} epoch {epoch.epoch:02} {bar:<40} {epoch.score:.1%}"


if __name__ == "__main__":
    main()
