from __future__ import annotations

import pytest
from ray import exceptions

from dexray.cluster.dispatch import Bucket, Bundle
from dexray.cluster.handouts import SentLot, lost_with
from dexray.cluster.ray_errors import Meaning, failure_of


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.statement("B200", "B204")
@pytest.mark.parametrize(
    ("error", "meaning", "words"),
    [
        (exceptions.WorkerCrashedError(), Meaning.CRASHED, "os._exit, SIGKILL"),
        (exceptions.OutOfMemoryError("killed"), Meaning.CRASHED, "ran out of memory"),
        (exceptions.NodeDiedError("gone"), Meaning.CRASHED, "node"),
        (exceptions.ActorDiedError(), Meaning.CRASHED, "async worker process"),
        (exceptions.ActorUnavailableError("unavailable", None), Meaning.CRASHED, "can't be reached"),
        (exceptions.RuntimeEnvSetupError("no such package"), Meaning.NOT_RUN, "no such package"),
        (exceptions.TaskUnschedulableError("no such node"), Meaning.NOT_RUN, "no such node"),
        (exceptions.TaskCancelledError(), Meaning.CANCELED, "canceled"),
        (ValueError("odd"), Meaning.CRASHED, "odd"),
        (Unprintable(), Meaning.CRASHED, "can't be read"),
        (None, Meaning.CRASHED, "None"),
    ],
)
def test_every_error_of_ray_has_a_meaning_for_an_attempt(error: object, meaning: Meaning, words: str) -> None:
    failure = failure_of(error)
    assert failure.meaning is meaning
    assert words in failure.detail


def test_an_error_that_a_task_raised_is_named_by_its_cause() -> None:
    error = exceptions.RayTaskError("run_lot", "Traceback ...", ValueError("broken message"))
    failure = failure_of(error)
    assert failure.error_type == "builtins.ValueError"
    assert "broken message" in failure.detail
    assert "Traceback ..." in failure.trace


def lot(number: int, sent_at: float, node: str = "", signature: bytes = b"") -> SentLot:
    bundle: Bundle[object] = Bundle(Bucket(signature, {}), "code", (), short=False)
    return SentLot(number, bundle, sent_at, node=node, heard_of=bool(node))  # type: ignore[arg-type]


def test_with_a_node_go_the_lots_that_ran_there_and_those_that_were_overtaken() -> None:
    ran_there, elsewhere = lot(1, 10.0, node="dead"), lot(2, 10.0, node="alive")
    silent, later, queued, other = (
        lot(3, 10.0),
        lot(4, 10.0, node="alive"),
        lot(5, 10.0),
        lot(6, 10.0, signature=b"gpu"),
    )
    after = lot(7, 30.0)
    lots = [ran_there, elsewhere, silent, later, queued, other, after]
    assert lost_with(lots, "dead", died_at=20.0, newest={b"": 4}) == [ran_there, silent]
