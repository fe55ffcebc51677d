"""Large values beside the database: an object is whole or not there, and there as long as a run refers to it."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from dexray.journal import Journal, JournalRefused, JournalUnavailable, Outcome, RunChange, open_journal
from dexray.journal.blob_store import BlobStore, FolderStore, label_of, open_blob_store
from dexray.journal.blobs import ORPHAN_SECONDS, STAGED_SECONDS
from tests.journal.builders import CLOSED, record, start
from tests.journal.test_journal_removal import clear, fail_write

ONE, TWO = b"one" * 10_000, b"two" * 10_000


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


H1, H2 = digest_of(ONE), digest_of(TWO)


# Stores ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return open_blob_store(str(tmp_path / "values"))
    return open_blob_store(f"memory://{tmp_path.name}-{os.getpid()}")


def test_a_store_keeps_what_it_is_given(store: BlobStore) -> None:
    store.put("d/ab/abc-1", ONE)
    store.put("d/ab/abd-1", memoryview(TWO))  # type: ignore[arg-type]
    assert (store.get("d/ab/abc-1"), store.get("d/ab/abd-1")) == (ONE, TWO)
    assert sorted(store.names("d", time.time() + 10)) == ["d/ab/abc-1", "d/ab/abd-1"]
    assert list(store.names("d", time.time() - 3600)) == []
    assert list(store.names("other", time.time() + 10)) == []
    store.delete("d/ab/abc-1")
    store.delete("d/ab/abc-1")
    with pytest.raises(FileNotFoundError):
        store.get("d/ab/abc-1")
    assert store.get("d/ab/abd-1") == TWO


def test_a_file_system_behind_fsspec_gets_objects_by_a_rename(tmp_path: Path) -> None:
    import fsspec

    store: Any = open_blob_store(f"memory://{tmp_path.name}")
    store._files, store._root, store._takes_whole = fsspec.filesystem("file"), str(tmp_path), False
    store.put("d/ab/abc-1", ONE)
    assert (tmp_path / "d/ab/abc-1").read_bytes() == ONE
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["abc-1"]


@pytest.mark.parametrize("step", ["write", "rename"])
def test_of_a_writer_killed_in_the_middle_nothing_is_visible(tmp_path: Path, step: str) -> None:
    folder = FolderStore(str(tmp_path / "values"))
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_put_and_die, args=(folder, step))
    child.start()
    child.join(30)
    assert child.exitcode == 9
    with pytest.raises(FileNotFoundError):
        folder.get("d/ab/abc-1")
    assert list(folder.names("d", time.time() + 10)) == ["d/ab/abc-1.part"]
    folder.put("d/ab/abc-1", ONE)
    assert folder.get("d/ab/abc-1") == ONE


def _put_and_die(folder: FolderStore, step: str) -> None:
    def die(*_: object) -> None:
        os._exit(9)

    (folder._folder / "d" / "ab").mkdir(parents=True)
    if step == "write":
        os.fsync = die
    else:
        Path.rename = die  # type: ignore[method-assign,assignment]
    folder.put("d/ab/abc-1", ONE)


def test_a_store_that_cannot_be_used_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalRefused, match="Give another folder"):
        open_blob_store(str(tmp_path / "file" / "values"))
    with pytest.raises(JournalRefused, match="nonsense://x can't be used"):
        open_blob_store("nonsense://x")
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(JournalRefused, match=r"pip install 'dexray\[blobs\]'"):
        open_blob_store("s3://bucket")


def test_a_label_has_no_secrets() -> None:
    assert label_of("sftp://ann:secret@host/values/") == "sftp://ann:***@host/values"
    assert label_of("file:///tmp") == label_of("/tmp/")


# A journal with a store -----------------------------------------------------------------------------------------------

Open = Callable[..., Journal]


@pytest.fixture
def opened(journal_url: str, tmp_path: Path) -> Iterator[Open]:
    journals: list[Journal] = []

    def open_one(store: str = "values") -> Journal:
        journals.append(open_journal(journal_url, blob_store=str(tmp_path / store) if store else ""))
        journals[-1].migrate()
        return journals[-1]

    yield open_one
    for journal in journals:
        journal.close()


def objects(folder: Path) -> list[str]:
    """The hashes of the objects in the store, sorted."""
    return sorted(path.name.partition("-")[0] for path in folder.rglob("*") if path.is_file())


def count(journal_url: str, question: str) -> int:
    engine = create_engine(journal_url)
    with engine.connect() as connection:
        answer: int = connection.execute(text(question)).scalar_one()
    engine.dispose()
    return answer


@pytest.mark.statement("D12", "C75")
def test_values_lie_in_the_store_once_and_are_read_from_there(opened: Open, journal_url: str, tmp_path: Path) -> None:
    journal = opened()
    assert (
        journal.append([start("r1", blobs={H1: ONE}), start("r2", blobs={H1: ONE, H2: TWO})]) == [Outcome.DURABLE] * 2
    )
    journal.append([record("r1", 2, blobs={H1: ONE})])
    assert objects(tmp_path / "values") == sorted([H1, H2])
    assert journal.get_blobs([H1, H2, "nothing"]) == {H1: ONE, H2: TWO}
    assert count(journal_url, "SELECT sum(length(body)) FROM blobs") == 0


def test_an_object_is_there_before_the_record_that_needs_it(opened: Open, tmp_path: Path) -> None:
    journal = opened()
    fail_write(journal, number=2)  # the first one names the folder of the database
    with pytest.raises(JournalUnavailable):
        journal.append([start("r1", blobs={H1: ONE})])
    assert objects(tmp_path / "values") == [H1]
    assert opened().find_run("r1") is None


def test_a_store_that_is_away_counts_as_an_outage(opened: Open, tmp_path: Path) -> None:
    journal = opened()
    journal.append([start("r1", blobs={H1: ONE})])
    folder = tmp_path / "values"
    folder.rename(tmp_path / "away")
    folder.write_text("not a folder")
    with pytest.raises(JournalUnavailable, match="values: blob"):
        journal.append([start("r2", blobs={H2: TWO})])
    with pytest.raises(JournalUnavailable, match="values: blob"):
        journal.get_blobs([H1])
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert journal.append([start("r2", blobs={H2: TWO})]) == [Outcome.DURABLE]
    assert journal.get_blobs([H1, H2]) == {H1: ONE, H2: TWO}


def test_a_missing_and_a_damaged_object_are_told_with_their_hash_and_store(opened: Open, tmp_path: Path) -> None:
    journal = opened()
    journal.append([start("r1", blobs={H1: ONE, H2: TWO})])
    for path in [path for path in (tmp_path / "values").rglob("*") if path.is_file()]:
        if path.name.startswith(H1):
            path.unlink()
        else:
            path.write_bytes(TWO[:-1] + b"!")
    assert journal.get_blobs([H1, H2]) == {}
    about = journal.about_blobs([H1, H2])
    assert f"{H1}: its object" in about
    assert f"is missing in the store {tmp_path / 'values'}" in about
    assert f"in the store {tmp_path / 'values'} is damaged ({len(TWO)} bytes)" in about
    assert "neither in the database nor in a store" in journal.about_blobs(["h"])


def test_values_of_a_former_setting_are_still_read_and_freed(opened: Open, tmp_path: Path) -> None:
    opened("").append([start("r1", blobs={H1: ONE}, change=CLOSED)])
    opened("old").append([start("r2", blobs={H2: TWO, H1: ONE}, change=CLOSED)])
    assert objects(tmp_path / "old") == [H2]
    for store in ("", "new", "old"):
        assert opened(store).get_blobs([H1, H2]) == {H1: ONE, H2: TWO}
    journal = opened("")
    journal.remove_run("r1")
    journal.remove_run("r2")
    clear(journal)
    assert objects(tmp_path / "old") == []


def test_an_object_goes_with_the_last_run_that_refers_to_it(opened: Open, journal_url: str, tmp_path: Path) -> None:
    journal = opened()
    journal.append([start("r1", "f", blobs={H1: ONE, H2: TWO}, change=CLOSED)])
    journal.append([start("r2", "f", replaces="r1", blobs_of="r1", change=CLOSED)])
    journal.remove_run("r1")
    clear(journal)
    assert objects(tmp_path / "values") == sorted([H1, H2])
    journal.remove_run("r2")
    clear(journal)
    assert objects(tmp_path / "values") == []
    for table in ("blobs", "blob_places", "blob_trash"):
        assert count(journal_url, f"SELECT count(*) FROM {table}") == 0
    journal.append([start("r3", "f", blobs={H1: ONE})])
    assert journal.get_blobs([H1]) == {H1: ONE}


def test_an_object_that_can_not_be_deleted_now_is_deleted_later(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened()
    journal.append([start("r1", blobs={H1: ONE}, change=CLOSED)])
    journal.remove_run("r1")

    def away(*_: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(FolderStore, "delete", away)
    clear(journal)
    assert objects(tmp_path / "values") == [H1]
    assert journal.append([start("r2", blobs={H1: ONE})]) == [Outcome.DURABLE]
    monkeypatch.undo()
    clear(opened())
    assert objects(tmp_path / "values") == [H1]
    assert journal.get_blobs([H1]) == {H1: ONE}


def test_a_value_that_is_freed_after_it_was_found_is_put_again(opened: Open, tmp_path: Path) -> None:
    journal, other = opened(), opened()
    journal.append([start("r1", blobs={H1: ONE}, change=CLOSED)])
    outside: Any = journal._outside  # type: ignore[attr-defined]
    original = outside.stage

    def stage_then_free(bodies: Any) -> Any:
        staged = original(bodies)
        outside.stage = original
        assert staged.known == {H1}
        other.remove_run("r1")
        clear(other)
        return staged

    outside.stage = stage_then_free
    assert journal.append([start("r2", blobs={H1: ONE})]) == [Outcome.DURABLE]
    assert objects(tmp_path / "values") == [H1]
    assert journal.get_blobs([H1]) == {H1: ONE}


def test_two_writers_of_one_value_leave_one_object_that_is_used_and_one_orphan(opened: Open, tmp_path: Path) -> None:
    journal, other = opened(), opened()
    outside: Any = journal._outside  # type: ignore[attr-defined]
    original = outside.stage

    def stage_second(bodies: Any) -> Any:
        staged = original(bodies)
        other.append([start("r1", blobs={H1: ONE})])
        return staged

    outside.stage = stage_second
    assert journal.append([start("r2", blobs={H1: ONE})]) == [Outcome.DURABLE]
    outside.stage = original
    assert objects(tmp_path / "values") == [H1, H1]
    grow_old(tmp_path / "values")
    assert journal.delete_orphans() == 1
    assert objects(tmp_path / "values") == [H1]
    assert journal.get_blobs([H1]) == {H1: ONE}


def grow_old(folder: Path, seconds: float = ORPHAN_SECONDS + 60) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_orphans_are_deleted_when_they_are_old_and_those_of_other_databases_never(opened: Open, tmp_path: Path) -> None:
    journal = opened()
    journal.append([start("r1", blobs={H1: ONE})])
    stranger = open_journal(tmp_path / "stranger.db", blob_store=str(tmp_path / "values"))
    stranger.migrate()
    stranger.append([start("r1", blobs={H2: TWO})])
    store: FolderStore = journal._outside._store  # type: ignore[attr-defined]
    prefix = journal._outside._own_prefix(store)  # type: ignore[attr-defined]
    store.put(f"{prefix}/ab/abc-1", b"left by a crash")
    (store._folder / prefix / "ab" / "abd-1.part").write_bytes(b"half")
    assert journal.delete_orphans() == 0
    grow_old(tmp_path / "values")
    assert journal.delete_orphans() == 2
    assert objects(tmp_path / "values") == sorted([H1, H2])
    assert journal.get_blobs([H1]) == {H1: ONE}
    assert stranger.get_blobs([H2]) == {H2: TWO}
    stranger.close()


def test_a_writer_that_was_frozen_for_long_puts_its_value_again(opened: Open, tmp_path: Path) -> None:
    journal = opened()
    outside: Any = journal._outside  # type: ignore[attr-defined]
    original, times = outside.stage, iter([0.0])

    def stage_then_freeze(bodies: Any) -> Any:
        outside._clock = time.time
        staged = original(bodies)
        for _ in times:
            outside._clock = lambda: time.time() + STAGED_SECONDS + 1
            object.__setattr__(staged, "clock", outside._clock)
            for path in (tmp_path / "values").rglob(f"{H1}*"):
                path.unlink()
        return staged

    outside.stage = stage_then_freeze
    assert journal.append([start("r1", blobs={H1: ONE})]) == [Outcome.DURABLE]
    assert journal.get_blobs([H1]) == {H1: ONE}


@pytest.mark.parametrize("number", range(1, 9))
def test_killed_at_any_write_no_run_misses_a_value(number: int, opened: Open, tmp_path: Path) -> None:
    journal = opened()
    journal.append([start("r1", blobs={H1: ONE, H2: TWO}, change=CLOSED)])
    fail_write(journal, number)
    try:
        journal.append([start("r2", blobs={H1: ONE})])
        journal.remove_run("r1")
        clear(journal)
        journal.append([record("r2", 2, blobs={H2: TWO}, change=RunChange("COMPLETED", 9.0))])
    except JournalUnavailable:
        pass
    after = opened()
    if after.find_run("r1") is not None or after.find_run("r2") is not None:
        assert after.get_blobs([H1]) == {H1: ONE}
    if after.find_run("r1") is not None or len(after.records("r2", 0, 10)) == 2:
        assert after.get_blobs([H2]) == {H2: TWO}
    grow_old(tmp_path / "values")
    clear(after)
    after.delete_orphans()
    if after.find_run("r2") is not None:
        assert after.get_blobs([H1]) == {H1: ONE}
