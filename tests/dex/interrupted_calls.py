"""A program for `test_portal`: calls through a portal that are interrupted at moments of all kinds."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time

from dex._portal import Portal


async def brief() -> int:
    await asyncio.sleep(0)
    return 1


def main(rounds: int, seed: int) -> None:
    dice = random.Random(seed)
    portal = Portal("Client")
    portal.call(brief)
    interrupted = 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for _ in range(rounds):
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 300e-6))
            while True:
                portal.call(brief)
        except KeyboardInterrupt:
            interrupted += 1
    assert portal.call(brief) == 1
    began = time.monotonic()
    portal.close()
    assert time.monotonic() - began < 1.5, "its thread is stuck"
    print(interrupted)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
