"""Blocking callers and the event loop behind them."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest

from dex._portal import Portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal("Client")
    yield portal
    portal.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def current_thread() -> threading.Thread:
    return threading.current_thread()


def test_a_call_returns_what_the_coroutine_returns(portal: Portal) -> None:
    assert portal.call(double, 21) == 42


def test_a_call_raises_what_the_coroutine_raises(portal: Portal) -> None:
    async def fail() -> None:
        raise LookupError("not here")

    with pytest.raises(LookupError, match="not here"):
        portal.call(fail)
    assert portal.call(double, 1) == 2


def test_all_calls_run_on_one_daemon_thread_that_starts_with_the_first(portal: Portal) -> None:
    before = threading.active_count()
    first = portal.call(current_thread)
    assert portal.call(current_thread) is first
    assert first.daemon
    assert threading.active_count() == before + 1


def test_a_portal_that_was_never_used_has_no_thread() -> None:
    before = threading.active_count()
    Portal("Client").close()
    assert threading.active_count() == before


def test_calls_of_several_threads_run_at_the_same_time(portal: Portal) -> None:
    arrived = 0
    all_here = asyncio.Event()

    async def meet(name: int) -> int:
        nonlocal arrived
        arrived += 1
        if arrived == 4:
            all_here.set()
        await all_here.wait()
        return name

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(lambda name: portal.call(meet, name), range(4))) == [0, 1, 2, 3]


async def test_a_caller_inside_a_running_loop_is_served(portal: Portal) -> None:
    assert portal.call(double, 3) == 6


def test_a_call_from_the_portal_s_own_thread_is_refused_instead_of_waiting_forever(portal: Portal) -> None:
    async def call_again() -> int:
        return portal.call(double, 1)

    with pytest.raises(RuntimeError, match=r"from its own background thread.*await an AsyncClient"):
        portal.call(call_again)


def test_close_ends_the_thread_and_may_be_repeated(portal: Portal) -> None:
    thread = portal.call(current_thread)
    portal.close()
    portal.close()
    assert not thread.is_alive()
    with pytest.raises(RuntimeError, match="the Client is closed: make a new one"):
        portal.call(double, 1)


def test_close_ends_a_call_that_another_thread_waits_for(portal: Portal) -> None:
    running = threading.Event()

    async def forever() -> None:
        running.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(portal.call, forever)
        assert running.wait(10)
        portal.close()
        with pytest.raises(RuntimeError, match="the Client was closed while a call was running"):
            call.result(10)


def test_a_portal_that_is_dropped_ends_its_thread() -> None:
    portal = Portal("Client")
    thread = portal.call(current_thread)
    del portal
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_keyboard_interrupt_cancels_the_call_and_leaves_the_portal_usable(portal: Portal) -> None:
    cancelled = threading.Event()

    async def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        portal.call(interrupted)
    assert cancelled.wait(10)
    assert portal.call(double, 4) == 8


def _call_in_child(portal: Portal, answers: Connection) -> None:
    try:
        answers.send(portal.call(double, 5))
    except RuntimeError as error:
        answers.send(str(error))


def _answer_of_child(portal: Portal) -> object:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_call_in_child, args=(portal, theirs))
    child.start()
    assert ours.poll(20)
    answer = ours.recv()
    child.join(20)
    assert child.exitcode == 0
    return answer


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_a_portal_that_was_in_use_says_so_in_the_child_and_works_on_in_the_parent(
    portal: Portal,
) -> None:
    portal.call(double, 1)
    assert "forked into process" in str(_answer_of_child(portal))
    assert portal.call(double, 2) == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_portal_that_was_not_used_before_a_fork_works_in_the_child(portal: Portal) -> None:
    assert _answer_of_child(portal) == 10


def test_a_program_that_closes_nothing_still_ends() -> None:
    program = """
        import asyncio, threading
        from dex._portal import Portal

        portal = Portal("Client")
        running = threading.Event()

        async def stubborn():
            running.set()
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass

        threading.Thread(target=portal.call, args=(stubborn,), daemon=True).start()
        running.wait()
        print("last line")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "last line\n"


def test_an_interrupt_at_any_moment_leaves_the_portal_as_it_was() -> None:
    rounds = 3_000
    program = [sys.executable, "-m", "tests.dex.interrupted_calls", str(rounds), "1"]
    answer = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert answer.stderr == ""
    assert answer.stdout.strip() == str(rounds)
