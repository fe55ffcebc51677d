"""The example of Attribute stores, in process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from dexray.settings import AttributeStore
from dexray.testing import FlowTest
from examples.primitives import attribute_store as example

PAID = ("Ada", "paid", '{"bolts": 100, "nuts": 20}')


def shop_test(shop: Path) -> FlowTest:
    return FlowTest(example.registry, attribute_stores=(AttributeStore("shop", f"sqlite:///{shop}", "orders"),))


def test_the_table_follows_an_order(tmp_path: Path) -> None:
    shop = tmp_path / "shop.db"
    example.make_table(shop)
    with shop_test(shop) as test:
        example.an_order(test.client, "order-1")
    assert example.orders(shop) == [PAID]


def test_a_table_that_comes_late_gets_the_latest_state_also_from_an_engine_that_came_later(tmp_path: Path) -> None:
    shop = tmp_path / "shop.db"
    with shop_test(shop) as test:
        example.an_order(test.client, "order-1")
        test.restart()
        example.make_table(shop)
        test.advance(timedelta(minutes=1))
    assert example.orders(shop) == [PAID]
