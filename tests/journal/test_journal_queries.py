"""What every journal tells of runs, blobs, deployments and leases, whatever database is behind it."""

from __future__ import annotations

import pytest

from dexray.journal import Journal, Lease, RunChange, StoredDeployment
from tests.journal.builders import CLOSED, record, start
from tests.journal.conftest import OpenJournal


def pages(journal: Journal, page_size: int, **where: str) -> list[list[str]]:
    found: list[list[str]] = []
    token = ""
    while True:
        rows, token = journal.list_runs(page_size=page_size, page_token=token, **where)
        found.append([row.run_id for row in rows])
        if not token:
            return found


class TestRuns:
    def test_what_is_not_there_is_none(self, journal: Journal) -> None:
        assert journal.current_run("ghost") is None
        assert journal.find_run("ghost") is None
        assert journal.records("ghost", 0, 10) == []
        assert journal.owners_of_open_runs() == {}
        assert journal.list_runs() == ([], "")

    def test_history_comes_a_page_at_a_time_oldest_first(self, journal: Journal) -> None:
        journal.append([start("r1"), *(record("r1", seq) for seq in range(2, 6))])
        assert [found.seq for found in journal.records("r1", 0, 2)] == [1, 2]
        assert [found.seq for found in journal.records("r1", 2, 2)] == [3, 4]
        assert [found.seq for found in journal.records("r1", 4, 2)] == [5]
        assert journal.records("r1", 5, 2) == []
        assert journal.records("r1", 0, 0) == []

    def test_open_runs_come_a_page_at_a_time_in_the_order_of_their_ids(self, journal: Journal) -> None:
        journal.append([start(run_id) for run_id in ("b", "a", "B", "é", "z")])
        journal.append([start("other", owner="host-2"), start("closed", change=RunChange(closed_at=1.0))])
        assert [run.run_id for run in journal.open_runs("host-1", "", 3)] == ["B", "a", "b"]
        assert [run.run_id for run in journal.open_runs("host-1", "b", 3)] == ["z", "é"]
        assert journal.open_runs("host-1", "é", 3) == []

    def test_only_current_runs_that_are_not_closed_are_open(self, journal: Journal) -> None:
        journal.append([start("r1", "f1", change=CLOSED), start("r2", "f2")])
        journal.append([start("r3", "f1", replaces="r1")])
        journal.append([record("r2", 2, change=RunChange(status="FAILED", closed_at=5.0))])
        assert [run.run_id for run in journal.open_runs("host-1", "", 10)] == ["r3"]
        assert journal.owners_of_open_runs() == {"host-1": 1}


class TestListing:
    def test_newest_starts_come_first_and_equal_ones_by_run_id(self, journal: Journal) -> None:
        journal.append([start("c", started_at=1.0), start("b", started_at=3.0), start("a", started_at=3.0)])
        assert pages(journal, 10) == [["a", "b", "c"]]
        assert pages(journal, 1) == [["a"], ["b"], ["c"]]
        assert pages(journal, 2) == [["a", "b"], ["c"]]
        assert pages(journal, 3) == [["a", "b", "c"]]

    def test_runs_are_found_by_status_and_flow_type(self, journal: Journal) -> None:
        failed = RunChange(status="FAILED", closed_at=9.0)
        journal.append(
            [start("a", flow_type="Order", change=failed), start("b", flow_type="Trip"), start("c", flow_type="Order")]
        )
        assert pages(journal, 10, status="FAILED") == [["a"]]
        assert pages(journal, 1, flow_type="Order") == [["a"], ["c"]]
        assert pages(journal, 10, flow_type="Order", status="RUNNING") == [["c"]]
        assert pages(journal, 10, flow_type="None") == [[]]

    def test_a_replaced_run_is_not_listed(self, journal: Journal) -> None:
        journal.append([start("a", "f1", change=CLOSED), start("b", "f1", replaces="a")])
        assert pages(journal, 10) == [["b"]]

    def test_runs_that_start_between_two_pages_shift_nothing(self, journal: Journal) -> None:
        journal.append([start(f"r{n}", started_at=float(n)) for n in range(6)])
        rows, token = journal.list_runs(page_size=2)
        seen = [row.run_id for row in rows]
        while token:
            journal.append([start(f"new-{len(seen)}", started_at=100.0 + len(seen))])
            rows, token = journal.list_runs(page_size=2, page_token=token)
            seen += [row.run_id for row in rows]
        assert seen == ["r5", "r4", "r3", "r2", "r1", "r0"]

    def test_a_token_keeps_times_to_the_last_digit(self, journal: Journal) -> None:
        close = [0.1 + 0.2, 0.3, 1e300, 1764498201.1234567]
        journal.append([start(f"r{n}", started_at=at) for n, at in enumerate(close)])
        assert pages(journal, 1) == [["r2"], ["r3"], ["r0"], ["r1"]]

    @pytest.mark.parametrize("token", ["x", "!!", "é", "WzFd", "W251bGwsMV0", "WzEsMV0", "W05hTiwiYSJd", "e30", "MQ"])
    def test_a_text_that_is_not_a_token_is_refused(self, journal: Journal, token: str) -> None:
        with pytest.raises(ValueError, match="page token"):
            journal.list_runs(page_token=token)

    @pytest.mark.parametrize("page_size", [0, -1])
    def test_a_page_has_room_for_a_run(self, journal: Journal, page_size: int) -> None:
        with pytest.raises(ValueError, match="page_size"):
            journal.list_runs(page_size=page_size)


class TestBlobs:
    @pytest.mark.statement("D12")
    def test_a_blob_is_stored_once_whoever_brings_it(self, journal: Journal) -> None:
        journal.append([start("r1", blobs={"h1": b"one", "h2": b""}), start("r2", blobs={"h1": b"one"})])
        journal.put_blobs("r1", {"h1": b"one", "h3": b"three"})
        journal.put_blobs("r1", {})
        assert journal.get_blobs(["h1", "h2", "h3", "h4"]) == {"h1": b"one", "h2": b"", "h3": b"three"}
        assert journal.get_blobs([]) == {}

    def test_a_blob_may_be_large(self, journal: Journal) -> None:
        body = bytes(range(256)) * 20_000
        journal.put_blobs("r1", {"big": body})
        assert journal.get_blobs(iter(["big"])) == {"big": body}


class TestDeployments:
    def test_a_deployment_becomes_the_newest_of_its_flow_types(self, journal: Journal) -> None:
        one = StoredDeployment("d1", 1.0, b"spec 1", b"code 1")
        two = StoredDeployment("d2", 2.0, b"spec 2", b"code 2")
        journal.put_deployment(one, ["Order", "Trip"])
        journal.put_deployment(two, ["Trip"])
        assert journal.newest_deployments() == {"Order": "d1", "Trip": "d2"}
        assert journal.get_deployment("d1") == one
        assert journal.get_deployment("d2") == two
        assert journal.get_deployment("d3") is None

    def test_code_that_comes_back_is_the_newest_again_and_stored_once(self, journal: Journal) -> None:
        one = StoredDeployment("d1", 1.0, b"spec 1", b"code 1")
        journal.put_deployment(one, ["Order"])
        journal.put_deployment(StoredDeployment("d2", 2.0, b"", b""), ["Order"])
        journal.put_deployment(StoredDeployment("d1", 3.0, b"other", b"other"), ["Order"])
        assert journal.newest_deployments() == {"Order": "d1"}
        assert journal.get_deployment("d1") == one

    def test_a_deployment_of_no_flow_type_is_stored(self, journal: Journal) -> None:
        journal.put_deployment(StoredDeployment("d1", 1.0, b"s", b"c"), [])
        assert journal.newest_deployments() == {}
        assert journal.get_deployment("d1") is not None


class TestLeases:
    def test_a_free_lease_is_taken(self, journal: Journal) -> None:
        assert journal.acquire_lease("cluster", "a", 20.0, now=10.0) == Lease("cluster", "a", 20.0)

    def test_a_held_lease_is_shown_to_others_and_not_changed(self, journal: Journal, another: OpenJournal) -> None:
        journal.acquire_lease("cluster", "a", 20.0, now=10.0)
        other = another()
        assert other.acquire_lease("cluster", "b", 99.0, now=19.9) == Lease("cluster", "a", 20.0)
        assert other.acquire_lease("cluster", "b", 99.0, now=19.9, take_from="c") == Lease("cluster", "a", 20.0)
        assert other.acquire_lease("another", "b", 99.0, now=19.9) == Lease("another", "b", 99.0)

    def test_a_lease_ends_at_its_time(self, journal: Journal) -> None:
        journal.acquire_lease("cluster", "a", 20.0, now=10.0)
        assert journal.acquire_lease("cluster", "b", 30.0, now=20.0) == Lease("cluster", "b", 30.0)
        assert journal.acquire_lease("cluster", "a", 40.0, now=20.0) == Lease("cluster", "b", 30.0)

    def test_the_holder_renews_its_lease(self, journal: Journal) -> None:
        journal.acquire_lease("cluster", "a", 20.0, now=10.0)
        assert journal.acquire_lease("cluster", "a", 30.0, now=15.0) == Lease("cluster", "a", 30.0)
        assert journal.acquire_lease("cluster", "b", 50.0, now=25.0) == Lease("cluster", "a", 30.0)

    def test_a_lease_is_taken_from_a_holder_known_to_be_dead(self, journal: Journal) -> None:
        journal.acquire_lease("cluster", "dead", 20.0, now=10.0)
        assert journal.acquire_lease("cluster", "b", 30.0, now=11.0, take_from="dead") == Lease("cluster", "b", 30.0)

    def test_a_lease_is_found_without_taking_it(self, journal: Journal, another: OpenJournal) -> None:
        other = another()
        assert other.find_lease("cluster") is None
        journal.acquire_lease("cluster", "a", 20.0, now=10.0)
        assert other.find_lease("cluster") == Lease("cluster", "a", 20.0)
        journal.release_lease("cluster", "a")
        assert other.find_lease("cluster") is None

    def test_only_its_holder_gives_a_lease_back(self, journal: Journal) -> None:
        journal.acquire_lease("cluster", "a", 20.0, now=10.0)
        journal.release_lease("cluster", "b")
        assert journal.acquire_lease("cluster", "b", 30.0, now=11.0).holder == "a"
        journal.release_lease("cluster", "a")
        journal.release_lease("cluster", "a")
        assert journal.acquire_lease("cluster", "b", 30.0, now=11.0).holder == "b"
