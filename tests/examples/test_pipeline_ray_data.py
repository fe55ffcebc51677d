"""A job of Ray Data as a Step, with a data set in its place: `test_pipelines_on_ray` runs the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dex import Registry
from dexray.testing import FlowTest
from examples.pipelines.ray_data import COLUMNS, Crunch, Job, RayDataFlow, Report
from tests.examples.pipeline_parts import whole_files

MakeTest = Callable[..., FlowTest]


class Parts:
    """Three batches; `meanwhile` is called after the second one."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.given = 0
        self.closed = 0

    def batches(self, job: Job) -> Iterator[pa.Table]:
        try:
            for number in range(3):
                if number == 2:
                    self.meanwhile()
                self.given += 1
                yield pa.table({"number": [number], "square": [number**2]}, schema=COLUMNS)
        finally:
            self.closed += 1


def start(in_process: MakeTest, parts: Parts, folder: Path) -> FlowTest:
    flow = RayDataFlow(parts)
    test = in_process(Registry([flow]))
    test.client.start_flow(flow, "job", Job(3, str(folder / "squares.parquet")))
    return test


def test_the_batches_are_one_file_in_order(in_process: MakeTest, tmp_path: Path) -> None:
    test = start(in_process, Parts(), tmp_path)
    assert test.client.wait_for_flow("job").single_output(str) == "3 rows in squares.parquet"
    assert pq.read_table(tmp_path / "squares.parquet")["square"].to_pylist() == [0, 1, 4]


def test_a_job_that_is_not_wanted_any_more_ends_between_two_batches_and_leaves_no_file(tmp_path: Path) -> None:
    class Canceled:
        asked = 0

        def is_cancellation_requested(self) -> bool:
            self.asked += 1
            return self.asked > 1

    parts = Parts()
    handler = Crunch(parts).execute(Canceled(), Job(3, str(tmp_path / "squares.parquet")))  # type: ignore[arg-type]
    assert len(list(handler)) == 1
    assert parts.given == 2
    assert whole_files(tmp_path) == {}


def test_a_job_that_breaks_is_begun_anew(in_process: MakeTest, tmp_path: Path) -> None:
    breaks = [MemoryError("a node is gone")]

    def once() -> None:
        assert not whole_names(tmp_path), "half a job is not there"
        if breaks:
            raise breaks.pop()

    parts = Parts(once)
    test = start(in_process, parts, tmp_path)
    assert test.client.wait_for_flow("job").single_output(str) == "3 rows in squares.parquet"
    assert (parts.given, parts.closed) == (5, 2)
    assert list(whole_files(tmp_path)) == ["squares.parquet"]


def whole_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize("step", [Crunch, Report])
def test_a_job_that_was_done_is_not_done_again(in_process: MakeTest, tmp_path: Path, step: object) -> None:
    """The worker dies when all is written, before that is known."""
    parts = Parts()
    flow = RayDataFlow(parts)
    test = in_process(Registry([flow]))
    test.kill_worker_on_attempt(step, 1, when="after")
    test.client.start_flow(flow, "job", Job(3, str(tmp_path / "squares.parquet")))
    assert test.client.wait_for_flow("job").single_output(str) == "3 rows in squares.parquet"
    assert parts.given == 3
