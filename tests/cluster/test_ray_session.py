"""What Ray is asked for when a session begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dex import DexServiceError
from dexray.cluster import ray_session
from dexray.cluster.ray_session import RaySession
from dexray.settings import resolve


@pytest.mark.parametrize(
    ("address", "wants", "shows"),
    [("local", True, True), ("local", False, False), ("192.0.2.9:6379", True, False)],
    ids=["embedded", "embedded, unwanted", "a cluster's own logs have it"],
)
def test_what_workers_print_is_shown_by_an_embedded_ray_unless_it_is_unwanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, wants: bool, shows: bool
) -> None:
    asked: list[dict[str, Any]] = []

    def refuse(address: str, arguments: dict[str, Any]) -> None:
        asked.append(arguments)
        raise ConnectionError("no Ray is started here")

    monkeypatch.setattr(ray_session, "_init_quietly", refuse)
    settings, _ = resolve({"address": address, "worker_output": wants, "database": tmp_path / "flows.db"})
    with pytest.raises(DexServiceError, match="no Ray is started here"):
        RaySession().enter(settings, meanwhile=lambda: None)
    assert [arguments["log_to_driver"] for arguments in asked] == [shows]
