"""What an operator changes in a running Flow: a Timer is skipped, its FlowConfig is updated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex.wire import service as s
from dex.wire.service import ServiceError
from dexray.engine import requests, starting
from dexray.machine import commands, timers

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost


async def skip_timer(host: FlowHost, request: s.SkipTimer) -> s.Done:
    live = await requests.find(host, request.flow_id)

    def act() -> s.Done:
        try:
            index = timers.find(live.flow.state, request.step, request.condition_id, request.condition_index)
        except timers.NoSuchTimer as error:
            raise ServiceError("NOT_FOUND", f"no Timer to skip in Flow {request.flow_id!r}: {error}") from error
        host.execute(live, commands.SkipTimer(step=request.step, index=index))
        return s.Done()

    return await requests.write(host, live, request, act, s.Done)


async def update_config(host: FlowHost, request: s.UpdateFlowConfig) -> s.Done:
    starting.check_config(host, request.config, f"update of the FlowConfig of Flow {request.flow_id!r}")
    live = await requests.find(host, request.flow_id)

    def act() -> s.Done:
        host.execute(live, commands.UpdateConfig(config=request.config))
        return s.Done()

    return await requests.write(host, live, request, act, s.Done)
