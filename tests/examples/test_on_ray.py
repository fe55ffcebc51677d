"""A choice of the examples as a newcomer runs them: `main()` on real Ray. One cluster and one engine serve them all."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.world import ray_database

PRINTED = {
    "primitives.heartbeat": ["attempt 2 imported rows 6 to 9"],
    "patterns.drain_external": ["orders packed in the last run"],
    "patterns.large_state": ["bolts +100: 100 left", "nuts +20: 20 left", "bolts -30: 70 left"],
    "patterns.parallel_first_win": ["the file came from Lima"],
    "patterns.parallel_subflows": ["not guilty, with 2 of 3 votes"],
    "patterns.parent_child": ["sea   developed in 1 s", "hill  developed in 2 s"],
    "patterns.responsive_update": ["at floor 3", "at floor 1", "3 4 5"],
    "products.microservices": ["was: apples", "API 2 got", "API 3 got"],
    "products.order_processing": [
        "charged",
        "a bicycle is on its way: parcel 12",
        "a bicycle is sold out; 300 is paid",
    ],
    "products.shortlist_candidates": ["Ada told", "Ben revoked: a mistake", "Cleo not told"],
    "pipelines.ray_data": ["10000 rows in squares.parquet", "{'number': 9999, 'square': 99980001}"],
    "pipelines.agent": ["tool:  Oslo has 717,710 people", "agent: Goodbye!"],
    "products.email_agent": ["sent to Cleo", "agent: It is canceled"],
}


@pytest.mark.ray
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_a_newcomer_wants_to_see(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEXRAY_DATABASE", ray_database())
    monkeypatch.setenv("DEXRAY_NAMESPACE", "dexray-world")
    import_module(f"examples.{name}").main()
    printed = capsys.readouterr().out
    for line in PRINTED[name]:
        assert line in printed
