from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attempts import shop


@pytest.fixture(autouse=True)
def clean_script() -> Iterator[None]:
    """Every test starts with a Step that waits for nothing and ends its branch."""
    wait_for, execute = shop.Script.__dict__["wait_for"], shop.Script.__dict__["execute"]
    yield
    shop.Script.wait_for, shop.Script.execute = wait_for, execute
