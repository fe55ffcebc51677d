"""What may be a name: of Flows, Steps, definitions, map instances and Flow IDs.

A definition's name and a map's instance make one physical name, `name` or `name/quoted-instance`, which is what the
engine knows. Hence a definition's name has no "/". A Step type is a part of Step execution IDs and markers: "/", "$"
and ":" are reserved there. A Flow ID belongs to the user and may be almost anything.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

LONGEST_FLOW_ID: Final = 1000
LONGEST_INDEX_KEY: Final = 200
SEARCH_FIELDS: Final = frozenset(
    {
        "FlowId",
        "WorkflowId",
        "RunId",
        "FlowType",
        "ExecutionStatus",
        "StartTime",
        "CloseTime",
        "DexParentFlowID",
        "ParentFlowId",
        "ActiveStepTypes",
    }
)
"""What a search can ask of every run; no index key has such a name."""
TIMEOUT_HANDLER: Final = "sys:timeout_handler"
"""Stands for the Step type of a Flow's timeout handler."""
RESERVED_IN_STEP_TYPES: Final = ("/", "$", ":")

_UNWRITABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and halves of surrogate pairs, which have no UTF-8 form."""


def check_name(kind: str, name: object) -> str:
    """A name of a definition (`kind` is "Channel", "Attribute", …), or ValueError / TypeError."""
    text = _text(f"the name of {_article(kind)}", name)
    if "/" in text:
        raise ValueError(f'{kind} name {text!r} must not contain "/", which separates a map from its instance')
    return text


def check_type_name(kind: str, name: object, reserved: tuple[str, ...] = ()) -> str:
    """A durable type name of a Flow or a Step, or ValueError / TypeError."""
    text = _text(f"{_article(kind)} type", name)
    for character in reserved:
        if character in text:
            raise ValueError(f"{kind} type {text!r} must not contain {character!r}, which is reserved")
    return text


def check_instance(kind: str, name: str, instance: object) -> str:
    """The key of an instance of a map, or ValueError / TypeError."""
    if not isinstance(instance, str):
        raise TypeError(f"{kind} {name!r}: an instance is named by a str, got {type(instance).__name__}: {instance!r}")
    if not instance:
        raise ValueError(f"{kind} {name!r}: the instance must not be empty")
    if "/" in instance:
        raise ValueError(f'{kind} {name!r}: instance {instance!r} must not contain "/"')
    if _UNWRITABLE.search(instance):
        raise ValueError(f"{kind} {name!r}: instance {instance!r} must not contain control characters")
    return instance


def check_flow_id(flow_id: object) -> str:
    """A Flow ID: any text of 1 to 1,000 characters without NUL and control characters.

    Raises TypeError for other types and ValueError naming what is wrong.
    """
    if not isinstance(flow_id, str):
        raise TypeError(f"a Flow ID is a str, got {type(flow_id).__name__}: {flow_id!r}")
    if not flow_id:
        raise ValueError("a Flow ID must not be empty")
    if len(flow_id) > LONGEST_FLOW_ID:
        raise ValueError(f"a Flow ID has at most {LONGEST_FLOW_ID} characters, got {len(flow_id)}: {flow_id[:40]!r}…")
    if found := _UNWRITABLE.search(flow_id):
        raise ValueError(
            f"Flow ID {flow_id!r} must not contain control characters: {found.group()!r} at position {found.start()}"
        )
    return flow_id


def physical_name(name: str, instance: str | None = None) -> str:
    """The engine's name of a definition, or of one instance of a map: `name/quoted-instance`."""
    return name if instance is None else f"{name}/{quote(instance, safe='')}"


def split_physical_name(physical: str) -> tuple[str, str | None]:
    """The definition's name and the instance, None for a plain definition."""
    name, slash, quoted = physical.partition("/")
    return name, unquote(quoted) if slash else None


def _text(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, got {type(name).__name__}: {name!r}")
    if not name.strip():
        raise ValueError(f"{what} must not be blank, got {name!r}")
    if _UNWRITABLE.search(name):
        raise ValueError(f"{what} must not contain control characters, got {name!r}")
    return name


def _article(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "AEIOU" else f"a {kind}"
