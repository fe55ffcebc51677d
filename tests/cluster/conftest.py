from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cluster.engines import Engines


@pytest.fixture(scope="module", autouse=True)
def no_ray_of_others() -> Iterator[None]:
    """Some modules want a Ray of their own making, so each begins without one and leaves none behind."""
    _end_ray()
    yield
    _end_ray()


def _end_ray() -> None:
    if "ray" in sys.modules:
        import ray

        from tests.world import forget_ray

        ray.shutdown()
        forget_ray()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """One small local Ray for all tests of a module."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    import ray

    ray.init(
        "local",  # and not one that a test beside this one has started on the machine
        num_cpus=2,
        include_dashboard=False,
        namespace="dexray-tests",
        log_to_driver=False,
        configure_logging=False,
    )
    yield ray
    ray.shutdown()


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    """Engines on a database of this test; they are ended with it."""
    from tests.cluster.engines import Engines

    made = Engines(tmp_path)
    yield made
    made.close()
