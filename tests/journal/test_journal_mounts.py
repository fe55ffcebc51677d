"""A SQLite file on a network file system is warned of, and on no other."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dexray.journal.mounts import network_file_system
from dexray.journal.sqlite import SqliteDatabase

TABLE = r"""
server:/run /run/shared nfs4 rw 0 0
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb /home/ann/disk xfs rw 0 0
//server/share /mnt/my\040share cifs rw 0 0
tmpfs /mnt/over tmpfs rw 0 0
ann@server: /mnt/over fuse.sshfs rw 0 0
server:/old /mnt/under nfs rw 0 0
/dev/sdc /mnt/under ext4 rw 0 0
broken
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "mounts"
    path.write_text(TABLE)
    return str(path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/flows.db", ""),
        ("/run/shared/flows.db", "nfs4"),
        ("/home/ann/flows.db", "nfs4"),
        ("/home/ann/disk/flows.db", ""),
        ("/homeless/flows.db", ""),
        ("/mnt/my share/flows.db", "cifs"),
        ("/mnt/over/flows.db", "fuse.sshfs"),
        ("/mnt/under/flows.db", ""),
    ],
)
def test_the_innermost_and_newest_mount_counts(table: str, path: str, kind: str) -> None:
    assert network_file_system(path, table) == kind


def test_without_a_table_nothing_is_said(tmp_path: Path) -> None:
    assert network_file_system("/home/ann/flows.db", str(tmp_path / "none")) == ""


@pytest.mark.parametrize("kind", ["nfs", "ext4"])
def test_a_journal_on_a_network_is_warned_of_and_told_the_way_out(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"there / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n")
    with caplog.at_level(logging.WARNING, "dexray"):
        SqliteDatabase(str(tmp_path / "a.db"), mounts=str(table)).close()
    told = [record.getMessage() for record in caplog.records]
    if kind == "ext4":
        assert told == []
    else:
        (warning,) = told
        assert str(tmp_path / "a.db") in warning
        assert "network file system (nfs)" in warning
        assert "PostgreSQL" in warning
