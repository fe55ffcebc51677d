"""What a record changes in the search index: entries that ride with it, into the same transaction.

Nothing here may stop a Flow. A value that its IndexType has no form for (the code has changed, a codec of the user's
writes something else) is indexed as being there, and equals nothing.

    changes                     its entries are made anew
    -------------------------   ---------------------------------------------------------------------------------------
    a write of an Attribute     of this Attribute, or instance of an AttributeMap
    a start, a fork             of all Attributes
    the open Steps              of `ActiveStepTypes`, as far as the FlowConfig's ActiveStepSearchMode says
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from dex.values import to_readable
from dex.values.readable import moment_in
from dex.wire.specs import WAIT_FOR, FlowSpec, IndexSpec
from dexray.engine.live import LiveFlow, Pending
from dexray.journal.interface import IndexEntry
from dexray.machine.events import AttributesWritten, FlowConfigUpdated, FlowForked, FlowStarted
from dexray.machine.state import WAITING, StepState
from dexray.search.conditions import ACTIVE_STEP_TYPES
from dexray.search.words import as_word, microseconds, moment_of, words_of

logger = logging.getLogger("dexray.engine.indexing")

LONGEST_SHOWN = 4096
"""Characters of a text that a search shows; what is cut off ends in an ellipsis."""

_NO_ENTRIES: dict[str, tuple[IndexEntry, ...]] = {}


def index_changes(live: LiveFlow, pending: Pending, spec: FlowSpec | None) -> Mapping[str, tuple[IndexEntry, ...]]:
    """The entries to write with the record of these events, by source. Empty for a Flow that is not searched."""
    mode = live.flow.state.config.active_step_search_mode
    is_on = mode in ("ALL", "WITH_WAIT_FOR")
    if not is_on and not live.indexed_steps and (spec is None or not spec.indexes) and not _updated(pending):
        return _NO_ENTRIES
    changes: dict[str, tuple[IndexEntry, ...]] = {}
    if spec is not None and spec.indexes:
        attributes = live.flow.state.attributes
        for name in _written(live, pending):
            index = spec.indexes.get(name.partition("/")[0])
            if index is not None:
                value = attributes.get(name)
                changes[as_word(name)] = () if value is None else entries_of(value, index, pending.blobs)
    steps = _active_steps(live, spec, mode or "")
    if steps != live.indexed_steps and (is_on or live.indexed_steps or _updated(pending)):
        changes[ACTIVE_STEPS] = tuple(
            IndexEntry(ACTIVE_STEP_TYPES, "KEYWORD_ARRAY", word=as_word(step_type)) for step_type in steps
        )
        live.indexed_steps = steps
    return changes


ACTIVE_STEPS = ""
"""The source of the entries of Steps: no Attribute has this name."""


def _updated(pending: Pending) -> bool:
    return any(isinstance(event, FlowConfigUpdated) for event in pending.events)


def _written(live: LiveFlow, pending: Pending) -> Iterable[str]:
    names: dict[str, None] = {}
    for event in pending.events:
        if isinstance(event, AttributesWritten | FlowStarted):
            names.update(dict.fromkeys(event.attributes))
        elif isinstance(event, FlowForked):
            names.update(dict.fromkeys(live.flow.state.attributes))
    return names


def _active_steps(live: LiveFlow, spec: FlowSpec | None, mode: str) -> tuple[str, ...]:
    steps = live.flow.state.steps.values()
    if mode == "ALL":
        return tuple(sorted({step.step_type for step in steps}))
    if mode == "WITH_WAIT_FOR":
        return tuple(sorted({step.step_type for step in steps if _has_waited(step, spec)}))
    return ()


def _has_waited(step: StepState, spec: FlowSpec | None) -> bool:
    """Its wait_for has run: its conditions are open, or its execute has its turn."""
    if step.method == WAIT_FOR:
        return step.phase == WAITING
    known = step.override or (spec.steps.get(step.step_type) if spec is not None else None)
    if known is None:
        return bool(step.conditions) or step.wait_for_failed
    return known.wait_for is not None


# Values ---------------------------------------------------------------------------------------------------------------


def entries_of(payload: bytes, index: IndexSpec, blobs: Mapping[str, bytes]) -> tuple[IndexEntry, ...]:
    """The entries of a value that is there. blobs: the large values that came with it."""
    try:
        return _entries(_value(payload, blobs), index.key, index.type)
    except Exception:
        logger.exception("a value for the index key %r can't be read, and is not found by it", index.key)
        return (IndexEntry(index.key, index.type, shown="null"),)


def _entries(value: Any, key: str, type: str) -> tuple[IndexEntry, ...]:
    match type:
        case "KEYWORD":
            text = _text(value)
            if text is None:
                return (IndexEntry(key, type, shown=_shown(value)),)
            word = as_word(text)
            return (IndexEntry(key, type, word=word, shown=None if word == text else _shown(text)),)
        case "KEYWORD_ARRAY":
            texts = [text for item in _items(value) if (text := _text(item)) is not None]
            words = dict.fromkeys(map(as_word, texts))
            return (IndexEntry(key, type, shown=_shown(texts)), *(IndexEntry(key, type, word=word) for word in words))
        case "FULL_TEXT":
            words = dict.fromkeys(words_of(value)) if isinstance(value, str) else {}
            return (IndexEntry(key, type, shown=_shown(value)), *(IndexEntry(key, type, word=word) for word in words))
        case "DOUBLE":
            number = float(value) if type_is(value, float, int) else math.nan
            if math.isnan(number):
                return (IndexEntry(key, type, shown=_shown(value)),)
            return (IndexEntry(key, type, real=number),)
    whole = _whole(value, type)
    return (IndexEntry(key, type, whole=whole, shown=_shown(value) if whole is None else None),)


def type_is(value: object, *types: type) -> bool:
    """Exactly: a bool is no int."""
    return type(value) in types


def _value(payload: bytes, blobs: Mapping[str, bytes]) -> Any:
    readable = to_readable(payload)
    if isinstance(readable, dict) and "$blob" in readable and readable["$blob"] in blobs:
        readable = to_readable(blobs[readable["$blob"]])
    if isinstance(readable, dict) and readable.keys() == {"$float"}:
        return float(readable["$float"])
    return readable


def _text(value: Any) -> str | None:
    """A text, or what has one form as a text: {"$uuid": "..."} and the like, a number, a truth value."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith("$"):
        value = next(iter(value.values()))
    if isinstance(value, str):
        return value
    return json.dumps(value) if type_is(value, int, float, bool) else None


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict) and value.keys() <= {"$set", "$frozenset"}:
        value = next(iter(value.values()), [])
    return value if isinstance(value, list) else []


def _whole(value: Any, type: str) -> int | None:
    if type == "INT":
        return value if type_is(value, int) else None
    if type == "BOOL":
        return int(value) if type_is(value, bool) else None
    moment = moment_in(value)
    if moment is None and isinstance(value, str):
        moment = moment_of(value)
    return None if moment is None else microseconds(moment)


def _shown(value: Any) -> str:
    if isinstance(value, str) and len(value) > LONGEST_SHOWN:
        value = value[: LONGEST_SHOWN - 1] + "…"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 8 * LONGEST_SHOWN else json.dumps("… (too long to be shown)")
