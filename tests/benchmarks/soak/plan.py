"""What a producer does with its n-th Flow: a pure function of the seed, the same in each of the producer's lives."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

KINDS = ("letters", "naps", "fan", "counter", "parent", "flaky", "train", "stream", "stay", "trip", "brief")
_WEIGHTS = (5, 4, 4, 4, 3, 3, 1, 2, 1, 3, 2)


@dataclass(frozen=True, slots=True)
class Plan:
    """`flow` is the Flow ID, `what` the parameters of its kind, as plain data."""

    flow: str
    kind: str
    what: dict[str, Any]


def plan_of(seed: int, producer: str, number: int) -> Plan:
    chance = random.Random(f"{seed}/{producer}/{number}")
    # The first Flows are one of each kind, so that the shortest soak has seen them all.
    kind = KINDS[number] if number < len(KINDS) else chance.choices(KINDS, _WEIGHTS)[0]
    what: dict[str, Any]
    match kind:
        case "letters":
            what = {"writers": {name: chance.randint(2, 6) for name in ("ann", "bob", "rpc")}}
        case "naps":
            seconds = [chance.randint(1, 6) for _ in range(chance.randint(1, 3))]
            what = {"seconds": seconds, "wake_after": chance.choice([None, chance.uniform(0.1, 6.0)])}
        case "fan":
            what = {"width": chance.randint(3, 9)}
        case "counter":
            what = {"adds": [[chance.randint(1, 9) for _ in range(chance.randint(1, 4))] for _ in range(3)]}
        case "parent":
            what = {"children": [chance.choice([1, 2, 3, 4, -1, -2]) for _ in range(chance.randint(1, 4))]}
        case "flaky":
            what = {"fails": chance.randint(0, 3)}
        case "train":
            what = {"seconds": chance.randint(1, 8)}
        case "stream":
            what = {"messages": chance.randint(5, 40), "own": chance.randint(1, 3)}
        case "trip":
            stops = chance.randint(2, 6)
            what = {"stops": stops, "back_after": chance.randint(0, stops)}
        case "brief":
            what = {"steps": chance.randint(0, 3)}
        case _:
            what = {"how": chance.choice(["CANCEL", "TERMINATE", "FAIL"])}
    return Plan(f"{producer}-{number}-{kind}", kind, what)
