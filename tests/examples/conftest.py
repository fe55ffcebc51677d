from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dex import Registry
from dexray.testing import FlowTest


@pytest.fixture
def in_process() -> Iterator[Callable[..., FlowTest]]:
    """FlowTests that end with the test. (`flow_test` needs an installed dexray.)"""
    with ExitStack() as stack:

        def make(registry: Registry, **options: Any) -> FlowTest:
            return stack.enter_context(FlowTest(registry, **options))

        yield make
