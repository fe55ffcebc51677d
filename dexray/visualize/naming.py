"""What definitions are called in the source, so that the option to add can be copied."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from dex import AttributeMap, AttributeMapLoad, ChannelMap, ChannelMapLoad
from dex.definitions import FlowDefinition
from dexray.visualize.facts import Use
from dexray.visualize.graph import Handler
from dexray.visualize.options import Selection
from dexray.visualize.values import MadeLoad, Values


def option_text(
    definition: FlowDefinition, handler: Handler, use: Use, prefix: str, selections: Sequence[Selection]
) -> str:
    """The option that selects what a use reads, with what the method selects by it already."""
    owner = definition.flow if handler.step is None else handler.step.step
    thing = use.definition
    kind = "attribute_map" if isinstance(thing, AttributeMap) else "channel"
    if isinstance(thing, ChannelMap):
        kind = "channel_map"
    name = name_of(thing, owner, use.expression)
    key = None if use.instance is None else use.instance.single
    option, added = f"load_{kind}s", name
    if isinstance(key, str):
        option, added = f"load_{kind}_instances", f"{name}.{_load_method(thing)}({key!r})"
    listed = [_element(element, owner) for element in selections[0].elements(option)]
    elements = [*listed, added]
    return f"{prefix}{option}=({', '.join(elements)}{',' if len(elements) == 1 else ''})"


def name_of(thing: Any, owner: Any, written: str) -> str:
    """What a definition is called where `owner`, a Step or a Flow, is written; else as the source has it."""
    for name, value in vars(sys.modules.get(type(owner).__module__, sys)).items():
        if value is thing:
            return name
    for name, value in {**vars(type(owner)), **getattr(owner, "__dict__", {})}.items():
        if value is thing:
            return f"self.{name}"
    return written


def key_text(instance: Values | None) -> str:
    if instance is None:
        return ""
    return f" at {instance.single!r}" if isinstance(instance.single, str) else ""


def _element(element: Any, owner: Any) -> str:
    match element:
        case AttributeMapLoad():
            name = name_of(element.attribute_map, owner, element.attribute_map.name)
            return f"{name}.load({element.instance!r})"
        case ChannelMapLoad():
            name = name_of(element.channel_map, owner, element.channel_map.name)
            return f"{name}.load_messages({element.instance!r})"
        case MadeLoad():
            name = name_of(element.definition, owner, element.definition.name)
            return f"{name}.{_load_method(element.definition)}(…)"
        case _:
            return name_of(element, owner, str(getattr(element, "name", element)))


def _load_method(thing: Any) -> str:
    return "load" if isinstance(thing, AttributeMap) else "load_messages"
