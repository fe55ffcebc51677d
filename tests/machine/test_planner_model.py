"""The planner of waits against a naive one that tries everything.

The naive planner knows only what a wait means: a candidate is feasible when some way to give messages to its
conditions respects all their bounds; of all those ways the right one gives the first condition as much as it
can while all the others still have their minimum, then the second, and so on. It enumerates the ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from hypothesis import event, given
from hypothesis import strategies as st

from dexray.machine import waits
from dexray.protocol.attempts import ConditionSpec, WaitSpec
from tests.machine.build import Bench, examples, step

CHANNELS = ("a", "b")


def naive_candidates(wait: WaitSpec) -> list[list[int]]:
    everything = list(range(len(wait.conditions)))
    if wait.kind == "any_combination_of":
        return [list(group) for group in wait.combinations]
    if wait.kind != "any_of":
        return [everything]
    order = {"timer": 0, "channel": 1, "subflow": 2}
    return [[index] for index in sorted(everything, key=lambda index: (order[wait.conditions[index].kind], index))]


def ways(conditions: list[ConditionSpec], sizes: dict[str, int]) -> Iterator[tuple[int, ...]]:
    ranges = []
    for condition in conditions:
        most = sizes[condition.channel] if condition.at_most is None else condition.at_most
        ranges.append(range(condition.at_least, most + 1))
    for way in product(*ranges):
        taken = dict.fromkeys(sizes, 0)
        for condition, count in zip(conditions, way, strict=True):
            taken[condition.channel] += count
        if all(taken[channel] <= size for channel, size in sizes.items()):
            yield way


def naive_select(
    wait: WaitSpec, fired: set[int], sizes: dict[str, int]
) -> tuple[tuple[int, ...], dict[int, int]] | None:
    for candidate in naive_candidates(wait):
        if any(wait.conditions[index].kind != "channel" and index not in fired for index in candidate):
            continue
        takers = sorted(index for index in candidate if wait.conditions[index].kind == "channel")
        found = list(ways([wait.conditions[index] for index in takers], sizes))
        if found:
            return tuple(candidate), dict(zip(takers, max(found), strict=True))
    return None


@st.composite
def channel_conditions(draw: st.DrawFn) -> ConditionSpec:
    low = draw(st.integers(0, 3))
    high = draw(st.one_of(st.none(), st.integers(low, 4)))
    return ConditionSpec("channel", channel=draw(st.sampled_from(CHANNELS)), at_least=low, at_most=high)


conditions = st.one_of(
    channel_conditions(),
    channel_conditions(),
    st.just(ConditionSpec("timer", duration=5.0)),
    st.just(ConditionSpec("subflow")),
)


@st.composite
def wait_specs(draw: st.DrawFn) -> WaitSpec:
    kind = draw(st.sampled_from(["all_of", "any_of", "any_combination_of"]))
    listed = tuple(draw(st.lists(conditions, min_size=1, max_size=4)))
    groups: tuple[tuple[int, ...], ...] = ()
    if kind == "any_combination_of":
        group = st.lists(st.sampled_from(range(len(listed))), min_size=1, unique=True).map(tuple)
        groups = tuple(draw(st.lists(group, min_size=1, max_size=3)))
    return WaitSpec(kind, listed, groups)


@examples(600)
@given(
    wait=wait_specs(),
    fired=st.sets(st.integers(0, 3)),
    sizes=st.fixed_dictionaries({channel: st.integers(0, 6) for channel in CHANNELS}),
)
def test_the_planner_selects_what_the_naive_one_selects(wait: WaitSpec, fired: set[int], sizes: dict[str, int]) -> None:
    expected = naive_select(wait, fired, sizes)
    selection = waits.select(wait, ready=fired, size_of=lambda channel: sizes[channel])
    event("nothing" if selection is None else f"{wait.kind} {len(selection.takes)}")
    if expected is None:
        assert selection is None
    else:
        assert selection is not None
        assert (selection.winners, dict(selection.takes)) == expected


@examples(200)
@given(wait=wait_specs(), sizes=st.fixed_dictionaries({channel: st.integers(0, 6) for channel in CHANNELS}))
def test_the_machine_takes_what_the_naive_planner_selects_the_oldest_messages_first(
    wait: WaitSpec, sizes: dict[str, int]
) -> None:
    bench = Bench(step("A", wait_for=True)).start()
    queues = {channel: [f"{channel}{number}".encode() for number in range(size)] for channel, size in sizes.items()}
    for channel, values in queues.items():
        bench.publish(channel, *values)
    bench.wait("A-1", wait)
    expected = naive_select(wait, set(), sizes)
    if expected is None:
        assert bench.phase("A-1") == "wait_for waiting"
        assert {channel: bench.queue(channel) for channel in queues} == queues
        return
    winners, takes = expected
    results = bench.results("A-1")
    for index, condition in enumerate(wait.conditions):
        taken = tuple(queues[condition.channel].pop(0) for _ in range(takes.get(index, 0)))
        assert results[index] == (index in winners, taken)
    assert {channel: bench.queue(channel) for channel in queues} == queues
