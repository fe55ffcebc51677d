"""The batch, in process: what becomes of good, broken and absent files, of people's decisions, and of deaths."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dex import Client, Registry
from dexray.testing import FlowTest
from examples.pipelines.batch.__main__ import HEADER, make_files
from examples.pipelines.batch.cleaning import COLUMNS, Cleaner
from examples.pipelines.batch.flow import BadFile, BatchFlow, Clean, Folders, Manifest, Scan, Settle, flow, progress
from examples.pipelines.batch.flow import registry as batches
from examples.pipelines.files import PARTIAL, write_whole
from tests.examples.pipeline_parts import whole_files

MakeTest = Callable[..., FlowTest]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Five good files, and a sixth that is cut off."""
    made = Folders(str(tmp_path / "raw"), str(tmp_path / "clean"))
    make_files(Path(made.source))
    return made


@pytest.fixture
def good(folders: Folders) -> Folders:
    (Path(folders.source) / "month-06.csv").unlink()
    return folders


def manifest(client: Client, flow_id: str = "batch") -> Manifest:
    return client.wait_for_flow(flow_id).single_output(Manifest)


def test_rows_that_make_sense_are_there_once_and_in_order(in_process: MakeTest, good: Folders) -> None:
    test = in_process(batches)
    test.client.start_flow(flow, "batch", good)
    assert manifest(test.client) == Manifest(5, 500, 20, [])
    table = pq.read_table(Path(good.target) / "month-01.parquet")
    assert table.schema.equals(COLUMNS)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert rows == sorted(set(rows))
    assert len(rows) == 100
    written = json.loads((Path(good.target) / "manifest.json").read_text())
    assert (written["files"], written["rows"]) == (5, 500)
    lines = [message.value for message in test.client.list_stream_messages("batch", progress, 50).messages]
    assert sorted(lines)[0] == "1/5 month-01.csv: 100 rows, 4 dropped"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x00\xff\xfe garbage", "CSV"),
        (b"", "Empty CSV file"),
        (b"station,degrees\nstation-1,1.0\n", "day"),
        (f"{HEADER}station-1,yesterday,1.0\n".encode(), "yesterday"),
        (f"{HEADER}station-\xff,2026-01-01,1.0\n".encode("latin-1"), "UTF8"),
    ],
    ids=["garbage", "empty", "no day", "no date", "no UTF-8"],
)
def test_a_file_that_can_not_be_read_is_in_quarantine_at_once_and_disturbs_no_other(
    in_process: MakeTest, good: Folders, content: bytes, reason: str
) -> None:
    (Path(good.source) / "bad.csv").write_bytes(content)
    test = in_process(batches)
    test.client.start_flow(flow, "batch", good)
    (bad,) = test.client.invoke_rpc(flow.look, "batch")
    assert bad.file == "bad.csv"
    assert reason in bad.reason
    assert test.errors == []
    assert len(whole_files(Path(good.target))) == 5
    assert test.client.invoke_rpc(flow.skip, "batch") is True
    assert manifest(test.client) == Manifest(5, 500, 20, [bad])
    assert "bad.parquet" not in whole_files(Path(good.target))


def test_what_was_mended_is_cleaned_too(in_process: MakeTest, folders: Folders) -> None:
    test = in_process(batches)
    test.client.start_flow(flow, "batch", folders)
    assert test.client.invoke_rpc(flow.retry, "batch") is True
    assert [bad.file for bad in test.client.invoke_rpc(flow.look, "batch")] == ["month-06.csv"], "it was not mended"
    (Path(folders.source) / "month-06.csv").write_text(f"{HEADER}station-1,2026-06-01,1.5\n")
    assert test.client.invoke_rpc(flow.retry, "batch") is True
    assert manifest(test.client) == Manifest(6, 501, 20, [])
    test.assert_no_messages_left("batch")


def test_when_nobody_looks_for_a_day_the_quarantine_is_skipped(in_process: MakeTest, folders: Folders) -> None:
    test = in_process(batches)
    test.client.start_flow(flow, "batch", folders)
    test.restart(down=timedelta(hours=20))
    test.assert_timers_pending("batch", timedelta(hours=4))
    assert [bad.file for bad in manifest(test.client).skipped] == ["month-06.csv"]


def test_an_empty_folder_is_a_batch_too(in_process: MakeTest, tmp_path: Path) -> None:
    test = in_process(batches)
    test.client.start_flow(flow, "batch", Folders(str(tmp_path), str(tmp_path / "clean")))
    assert manifest(test.client) == Manifest(0, 0, 0, [])


class Disk(Cleaner):
    """A disk that is away for so many reads of a file."""

    def __init__(self, away: int = 0) -> None:
        self.away = away

    def read(self, source: Path) -> bytes:
        if source.name == "month-03.csv" and self.away:
            self.away -= 1
            raise TimeoutError("the disk is away")
        return super().read(source)


def test_a_file_on_a_disk_that_is_away_is_tried_again_and_no_other_waits_for_it(
    in_process: MakeTest, good: Folders
) -> None:
    disk = BatchFlow(Disk(away=3))
    test = in_process(Registry([disk]), skip_time=False)
    test.client.start_flow(disk, "batch", good)
    assert len(whole_files(Path(good.target))) == 4
    test.advance(timedelta(minutes=1))
    assert manifest(test.client) == Manifest(5, 500, 20, [])


def test_a_file_on_a_disk_that_stays_away_is_in_quarantine_and_what_was_made_of_it_stays(
    in_process: MakeTest, good: Folders
) -> None:
    test = in_process(batches)
    test.client.start_flow(flow, "batch", good)
    before = whole_files(Path(good.target))
    disk = BatchFlow(Disk(away=5))
    test = in_process(Registry([disk]))
    test.client.start_flow(disk, "batch", good)
    assert manifest(test.client).skipped == [BadFile("month-03.csv", "the disk is away")]
    assert whole_files(Path(good.target))["month-03.parquet"] == before["month-03.parquet"]


def test_a_second_run_writes_only_what_is_new_or_changed(in_process: MakeTest, good: Folders) -> None:
    test = in_process(batches)
    test.client.start_flow(flow, "first", good)
    first = manifest(test.client, "first")
    before = {path.name: path.stat().st_ino for path in Path(good.target).glob("*.parquet")}
    (Path(good.source) / "month-02.csv").write_text(f"{HEADER}station-1,2026-02-01,1.5\n")
    (Path(good.source) / "new.csv").write_text(f"{HEADER}station-1,2026-03-01,1.5\n")
    test.client.start_flow(flow, "second", good)
    assert manifest(test.client, "second") == Manifest(6, first.rows - 100 + 2, first.dropped - 4, [])
    after = {path.name: path.stat().st_ino for path in Path(good.target).glob("*.parquet")}
    assert {name for name, inode in after.items() if before.get(name) != inode} == {"month-02.parquet", "new.parquet"}


def test_a_file_that_has_become_unreadable_leaves_nothing_old_behind(in_process: MakeTest, good: Folders) -> None:
    test = in_process(batches)
    test.client.start_flow(flow, "first", good)
    (Path(good.source) / "month-02.csv").write_text("nonsense")
    test.client.start_flow(flow, "second", good)
    assert [bad.file for bad in manifest(test.client, "second").skipped] == ["month-02.csv"]
    assert "month-02.parquet" not in whole_files(Path(good.target))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [Scan, Clean, Settle])
def test_a_worker_that_is_killed_changes_nothing_of_the_output(
    in_process: MakeTest, good: Folders, tmp_path: Path, step: object, when: str
) -> None:
    test = in_process(batches)
    test.client.start_flow(flow, "undisturbed", good)
    there = Folders(good.source, str(tmp_path / "there"))
    test.kill_worker_on_attempt(step, 1, when=when)
    test.client.start_flow(flow, "disturbed", there)
    assert manifest(test.client, "disturbed") == manifest(test.client, "undisturbed")
    assert whole_files(Path(there.target)) == whole_files(Path(good.target))


def test_half_a_file_of_a_killed_process_is_swept_away(in_process: MakeTest, good: Folders) -> None:
    Path(good.target).mkdir()
    (Path(good.target) / f"{PARTIAL}month-01.parquet-1234").write_bytes(b"PAR1 half")
    test = in_process(batches)
    test.client.start_flow(flow, "batch", good)
    assert manifest(test.client).files == 5
    assert len(whole_files(Path(good.target))) == 6


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fails(partial: Path) -> None:
        partial.write_text("half of the n")
        assert path.read_text() == "old"
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        write_whole(path, fails)
    assert whole_files(tmp_path) == {"file": b"old"}
