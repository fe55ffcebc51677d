"""A disk that is full under a running engine is an outage like another: Flows pause, callers are told, all go on."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.faulty import give_up
from tests.engine.rig import NIL, Rig, by_step, code_of, done, settle, virtual
from tests.engine.test_outage import ORDER, STEPS, WHOLE_LIFE, kinds
from tests.journal.test_journal_sqlite import disk_that_ends_at
from tests.machine.build import flow, graceful_complete, step


@pytest.mark.statement("D14")
@virtual
async def test_a_full_disk_pauses_flows_until_there_is_room(rig: Rig) -> None:
    rig.script = STEPS
    host = await rig.host(ORDER, outage_patience=3.0)
    run = await host.start("f")
    await settle()
    with disk_that_ends_at(4_096):  # nothing fits any more
        error = await give_up(host.publish("f", "news", NIL, request_id="p", fresh=True))
        assert code_of(error) == "UNAVAILABLE"
        assert "make room" in str(error)
        assert "locked" not in str(error)
        await asyncio.sleep(300)
        assert host.host.flows["f"].problem == ""
    await host.publish("f", "news", NIL, request_id="p")
    assert (await host.result("f")).status == "COMPLETED"
    assert kinds(rig, run) == WHOLE_LIFE
    assert len(rig.events(run, "MessagePublished")) == 1


@pytest.mark.statement("D14")
@virtual
async def test_starts_on_a_full_disk_are_refused_in_time_and_may_be_repeated(rig: Rig) -> None:
    rig.script = by_step(First=done(graceful_complete(NIL)))
    host = await rig.host(flow(step("First")), outage_patience=3.0)
    begin = asyncio.get_running_loop().time()
    with disk_that_ends_at(4_096):
        errors = await asyncio.gather(*(give_up(host.start(f"f{n}", request_id=f"s{n}", fresh=True)) for n in range(5)))
    assert [code_of(error) for error in errors] == ["UNAVAILABLE"] * 5
    assert asyncio.get_running_loop().time() - begin < 3.5
    for number in range(5):
        await host.start(f"f{number}", request_id=f"s{number}")
        assert (await host.result(f"f{number}")).status == "COMPLETED"
        assert len(rig.runs(f"f{number}")) == 1
