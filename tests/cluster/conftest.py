from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """One small local Ray for all tests of this process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    import ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        namespace="dexray-tests",
        log_to_driver=False,
        configure_logging=False,
    )
    yield ray
    ray.shutdown()
