"""The lease of a database: who gets it, who has to wait, and whose death can be seen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dexray.cluster import lease as leases
from dexray.cluster.lease import LEASE, Holder, this_process
from dexray.journal import Journal, open_journal

SECONDS = 10.0


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = open_journal(tmp_path / "flows.db")
    made.migrate()
    yield made
    made.close()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def me(cluster: str = "mine") -> str:
    return this_process(cluster, address="10.0.0.1:6379", namespace="dexray")


def held_by(pid: int, **changes: object) -> str:
    """What a Directory in another cluster's process says of itself."""
    holder = msgspec.json.decode(this_process("another", address="10.9.9.9:1", namespace="n"), type=Holder)
    told = {"began": leases._began(pid), **changes}
    return msgspec.json.encode(msgspec.structs.replace(holder, pid=pid, **told)).decode()


def take(journal: Journal, holder: str, now: float) -> str:
    return leases.acquire(journal, holder, seconds=SECONDS, now=now).holder


def is_mine(journal: Journal, now: float) -> bool:
    return take(journal, me(), now) == me()


class TestHeldByAnother:
    def test_it_is_while_another_cluster_has_it_and_it_has_not_expired(self, journal: Journal) -> None:
        assert leases.held_by_another(journal, "mine", 100.0) is None
        take(journal, held_by(os.getpid()), 100.0)
        assert leases.held_by_another(journal, "mine", 100.0) == journal.find_lease(LEASE)
        assert leases.held_by_another(journal, "another", 100.0) is None
        assert leases.held_by_another(journal, "mine", 100.0 + SECONDS) is None


class TestTaking:
    def test_a_free_lease_is_taken(self, journal: Journal) -> None:
        lease = leases.acquire(journal, me(), seconds=SECONDS, now=100.0)
        assert (lease.holder, lease.expires_at) == (me(), 110.0)

    def test_the_holder_renews_it(self, journal: Journal) -> None:
        assert is_mine(journal, 100.0)
        assert leases.acquire(journal, me(), seconds=SECONDS, now=105.0).expires_at == 115.0

    def test_a_lease_that_was_given_back_is_free(self, journal: Journal, stranger: subprocess.Popen[bytes]) -> None:
        holder = held_by(stranger.pid)
        take(journal, holder, 100.0)
        journal.release_lease(LEASE, holder)
        assert is_mine(journal, 100.0)

    def test_the_holder_that_lives_keeps_it(self, journal: Journal, stranger: subprocess.Popen[bytes]) -> None:
        take(journal, held_by(stranger.pid), 100.0)
        assert not is_mine(journal, 109.9)
        assert journal.find_lease(LEASE).expires_at == 110.0  # type: ignore[union-attr]

    def test_an_expired_lease_is_taken_even_from_one_that_lives(
        self, journal: Journal, stranger: subprocess.Popen[bytes]
    ) -> None:
        """It was silent for too long: frozen, or cut off from the database."""
        take(journal, held_by(stranger.pid), 100.0)
        assert is_mine(journal, 110.0)
        assert take(journal, held_by(stranger.pid), 111.0) == me()

    def test_a_new_directory_of_the_same_cluster_takes_it(
        self, journal: Journal, stranger: subprocess.Popen[bytes]
    ) -> None:
        take(journal, held_by(stranger.pid, cluster="mine"), 100.0)
        assert is_mine(journal, 101.0)

    def test_a_holder_that_nobody_can_read_keeps_it_until_it_expires(self, journal: Journal) -> None:
        take_from = journal.acquire_lease(LEASE, "somebody of another version", 110.0, 100.0)
        assert not is_mine(journal, 109.0)
        assert leases.describe(take_from) == "somebody of another version"
        assert is_mine(journal, 110.0)


class TestDeath:
    def test_it_is_taken_at_once_from_a_killed_process(
        self, journal: Journal, stranger: subprocess.Popen[bytes]
    ) -> None:
        take(journal, held_by(stranger.pid), 100.0)
        assert not is_mine(journal, 100.0)
        stranger.kill()
        stranger.wait()
        assert is_mine(journal, 100.0)

    def test_a_zombie_is_dead(self, journal: Journal, stranger: subprocess.Popen[bytes]) -> None:
        take(journal, held_by(stranger.pid), 100.0)
        stranger.kill()
        os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked for its end
        assert Path(f"/proc/{stranger.pid}/stat").exists()
        assert is_mine(journal, 100.0)

    def test_a_pid_that_was_used_again_is_somebody_else(
        self, journal: Journal, stranger: subprocess.Popen[bytes]
    ) -> None:
        holder = msgspec.json.decode(held_by(stranger.pid), type=Holder)
        earlier = msgspec.structs.replace(holder, began=str(int(holder.began) - 1))
        take(journal, msgspec.json.encode(earlier).decode(), 100.0)
        assert is_mine(journal, 100.0)

    @pytest.mark.parametrize(
        "elsewhere", [{"host": "another-host"}, {"boot": "another-boot"}, {"space": "pid:[1]"}, {"boot": ""}]
    )
    def test_a_process_that_cannot_be_seen_from_here_is_not_called_dead(
        self, journal: Journal, elsewhere: dict[str, str]
    ) -> None:
        """On another machine, before a restart of this one, or in another container."""
        nobody_here = {"began": "12345"}  # by its pid and this, it would be dead
        take(journal, held_by(2**22 + 1, **nobody_here, **elsewhere), 100.0)
        assert not is_mine(journal, 109.0)
        assert is_mine(journal, 110.0)


class TestFinding:
    """The second notebook on a database finds the engine of the first."""

    @pytest.fixture
    def listening(self) -> Iterator[str]:
        """An address where something answers."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield f"127.0.0.1:{server.getsockname()[1]}"

    def find(self, journal: Journal, holder: str, now: float = 105.0) -> str:
        take(journal, holder, 100.0)
        engine = leases.living_engine(journal, now)
        return engine.address if engine is not None else ""

    def test_a_living_engine_is_found(
        self, journal: Journal, stranger: subprocess.Popen[bytes], listening: str
    ) -> None:
        assert self.find(journal, held_by(stranger.pid, address=listening)) == listening

    def test_nobody_is_found_without_a_lease(self, journal: Journal) -> None:
        assert leases.living_engine(journal, 100.0) is None

    def test_an_expired_lease_leads_nowhere(
        self, journal: Journal, stranger: subprocess.Popen[bytes], listening: str
    ) -> None:
        assert self.find(journal, held_by(stranger.pid, address=listening), now=110.0) == ""

    def test_the_lease_of_a_dead_process_leads_nowhere(
        self, journal: Journal, stranger: subprocess.Popen[bytes], listening: str
    ) -> None:
        holder = held_by(stranger.pid, address=listening)
        stranger.kill()
        stranger.wait()
        assert self.find(journal, holder) == ""

    def test_an_engine_on_another_machine_is_not_joined_unasked(
        self, journal: Journal, stranger: subprocess.Popen[bytes], listening: str
    ) -> None:
        assert self.find(journal, held_by(stranger.pid, address=listening, host="another-host")) == ""

    def test_an_engine_whose_ray_has_ended_is_not_joined(
        self, journal: Journal, stranger: subprocess.Popen[bytes]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        assert self.find(journal, held_by(stranger.pid, address=address)) == ""
        assert self.find(journal, held_by(stranger.pid, address="nowhere")) == ""

    def test_looking_makes_no_database_and_bears_a_bad_one(self, tmp_path: Path) -> None:
        missing, bad = tmp_path / "missing.db", tmp_path / "bad.db"
        bad.write_bytes(b"this is no database" * 100)
        assert leases.find_engine(str(missing)) is None
        assert not missing.exists()
        assert leases.find_engine(str(bad)) is None
        assert leases.find_engine("postgresql://u:p@h/db") is None

    def test_a_database_whose_tables_are_not_made_yet_has_no_engine(self, tmp_path: Path) -> None:
        open_journal(tmp_path / "new.db").close()
        assert leases.find_engine(str(tmp_path / "new.db")) is None


def test_people_are_told_where_the_engine_is(journal: Journal) -> None:
    lease = leases.acquire(journal, me(), seconds=SECONDS, now=100.0)
    told = leases.describe(lease)
    assert all(word in told for word in (socket.gethostname(), str(os.getpid()), "10.0.0.1:6379", "'dexray'"))
