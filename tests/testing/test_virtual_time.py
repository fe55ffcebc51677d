"""The event loop of virtual time, apart from any engine."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from dexray.testing.virtual import run_virtual

HIGH = 1_100
"""More than select(2) can take: 1,023."""


@pytest.fixture
def room() -> Iterator[None]:
    """For so many open files."""
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    if former[0] <= HIGH:
        resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH + 10, former[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, former)


@pytest.mark.usefixtures("room")
def test_it_works_in_a_process_with_more_than_a_thousand_open_files() -> None:
    async def main() -> bytes:
        here, there = socket.socketpair()
        with here, there, socket.socket(fileno=fcntl.fcntl(here, fcntl.F_DUPFD, HIGH)) as high:
            high.setblocking(False)
            asyncio.get_running_loop().call_later(60.0, there.send, b"heard")
            return await asyncio.get_running_loop().sock_recv(high, 10)

    assert run_virtual(main()) == b"heard"


def test_time_passes_at_once_and_only_when_nothing_else_can_happen() -> None:
    async def main() -> tuple[list[str], float]:
        order: list[str] = []

        async def late() -> None:
            await asyncio.sleep(30 * 24 * 3600)
            order.append("late")

        async def soon() -> None:
            for _ in range(100):
                await asyncio.sleep(0)
            order.append("soon")

        await asyncio.gather(late(), soon())
        return order, asyncio.get_running_loop().time()

    assert run_virtual(main()) == (["soon", "late"], 30 * 24 * 3600)
