"""A cluster that wants a token says so, and what to do, to whoever comes without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dex import StatusCode
from dexray.cluster.tokens import why_unreachable
from tests.cluster.notebook import Program

CLUSTER = """
import sys
from unittest import mock
from ray.cluster_utils import Cluster

head = {"num_cpus": 1, "include_dashboard": False, "include_log_monitor": False}
with mock.patch("ray._private.utils.write_ray_address"):  # not noted as the cluster of this machine
    cluster = Cluster(initialize_head=True, head_node_args=head)
print("at", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
CLIENT = """
import sys
import dexray
from dex import DexServiceError

try:
    dexray.open_service(database=sys.argv[1], address=sys.argv[2])
except DexServiceError as error:
    print("said", error.code.name, error.detail)
"""
OURS, STRANGE = "o" * 40, "s" * 40


def chained(*texts: str) -> Exception:
    error = RuntimeError(texts[-1])
    for text in reversed(texts[:-1]):
        outer = ConnectionError(text)
        outer.__cause__ = error
        error = outer  # type: ignore[assignment]
    return error


HEAD_SAYS = "Unauthenticated: RPC error: InvalidAuthToken: Authentication token is missing or incorrect"


class TestWords:
    def test_a_process_without_a_token_is_told_of_the_mode_and_of_the_places(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        code, detail = why_unreachable("Ray at a:1 can't be reached", chained("Failed to connect", "no GCS", HEAD_SAYS))
        assert code is StatusCode.UNAUTHENTICATED
        for words in ("Ray at a:1", "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"):
            assert words in detail

    def test_a_wrong_token_is_not_called_a_missing_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        code, detail = why_unreachable("Ray", chained("Failed to connect", HEAD_SAYS))
        assert code is StatusCode.UNAUTHENTICATED
        assert "is not the cluster's" in detail

    def test_another_failure_is_told_as_it_is(self) -> None:
        code, detail = why_unreachable("Ray at a:1 can't be reached", chained("Failed to connect", "refused"))
        assert (code, detail) == (StatusCode.UNAVAILABLE, "Ray at a:1 can't be reached: Failed to connect")

    def test_causes_that_go_round_in_circles_come_to_an_end(self) -> None:
        error = chained("a", "b")
        assert error.__cause__ is not None
        error.__cause__.__cause__ = error
        assert why_unreachable("Ray", error)[0] is StatusCode.UNAVAILABLE


def without_token(folder: Path) -> dict[str, str]:
    """The environment of a user who has none, and who does not try for twenty seconds."""
    return {"HOME": str(folder), "RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("head")
    wants = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": OURS}
    with Program(["-c", CLUSTER], folder, {**without_token(folder), **wants}) as cluster:
        line = cluster.line()
        while not line.startswith("at "):
            line = cluster.line()
        yield line.removeprefix("at ")


@pytest.mark.ray
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("has", "told"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, "this process came without one. Set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "token"}, "there is no token. Put the cluster's one in RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": STRANGE}, "the one of this process is not the cluster's"),
    ],
    ids=["no mode", "no token", "a strange token"],
)
def test_whoever_comes_without_the_token_of_a_cluster_is_told_the_way_out(
    address: str, has: dict[str, str], told: str, tmp_path: Path
) -> None:
    database = str(tmp_path / "flows.db")
    with Program(["-c", CLIENT, database, address], tmp_path, {**without_token(tmp_path), **has}) as client:
        line = client.line()
        while not line.startswith("said "):
            line = client.line()
        assert line.startswith("said UNAUTHENTICATED Ray at "), line
        assert told in line
