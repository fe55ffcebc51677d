"""Code is tried on a worker before it is deployed, so that a broken deployment never becomes the newest."""

from __future__ import annotations

import asyncio
from typing import Any

import ray

from dexray.cluster.ray_errors import failure_of
from dexray.cluster.worker_task import check_code

PATIENCE = 60.0  # seconds: a cold machine starts processes slowly
NOBODY = 0  # the code is loaded for no owner: nothing is reported


async def why_not_loadable(code: bytes, deployment_id: str) -> str:
    """Loads packed code on a worker of the caller's job: "" when that works, or why it does not."""
    task = ray.remote(check_code).options(num_cpus=0, max_retries=1, name="dexray.check_code")
    reference = task.remote([ray.put((code, None, None))], deployment_id, NOBODY)
    try:
        return str(await asyncio.wait_for(_awaitable(reference), PATIENCE))
    except TimeoutError:
        return f"no worker could load deployment {deployment_id} within {PATIENCE:g} s"
    except ray.exceptions.RayError as error:
        return f"a worker failed to load deployment {deployment_id}: {failure_of(error).detail}"


async def _awaitable(reference: Any) -> Any:
    return await reference
