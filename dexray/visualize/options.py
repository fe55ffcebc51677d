"""What a method selects to be loaded, and whether that covers a read.

A Step may be entered in several ways, each with options of its own: those of `get_step_options()`, or the options of a
movement over them. Options that a handler makes are known by the fields that it gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

from dex import Attribute, AttributeMap, AttributeMapLoad, ChannelMap, ChannelMapLoad, StepOptions
from dexray.visualize.values import PLAIN, Items, MadeLoad, MadeOptions, Values, only

Fields = Mapping[str, Values]

_LOADS: Final = (
    "load_attribute_maps",
    "load_attribute_map_instances",
    "load_channels",
    "load_channel_maps",
    "load_channel_map_instances",
)


class Covers(Enum):
    """Whether a selection covers a read."""

    YES = "yes"
    NO = "no"
    MAYBE = "that can't be told"


def fields_of(options: Any) -> Fields | None:
    """The fields that options give, those left at their default not among them. None when they are no options."""
    if options is None:
        return {}
    if isinstance(options, MadeOptions):
        return options.fields
    if not isinstance(options, StepOptions):
        return None
    return {
        known.name: only(value) for known in fields(options) if (value := getattr(options, known.name)) != known.default
    }


@dataclass(frozen=True, slots=True)
class Selection:
    """The fields of options that select for one method, by their names without the method."""

    loads: Fields

    @staticmethod
    def of(options: Any, prefix: str = "", over: Fields | None = None) -> Selection:
        """The selection of an options object. over: fields that replace its own, as those of a movement do."""
        found: dict[str, Values] = {}
        for name in _LOADS:
            option = f"{prefix}{name}"
            given = None if over is None else over.get(option)
            found[name] = only(getattr(options, option)) if given is None or _is_empty(given) else given
        return Selection(found)

    def covers(self, definition: Any, instance: Values | None) -> Covers:
        """Whether the read of a definition, of a map at `instance`, is covered."""
        if isinstance(definition, Attribute):
            return Covers.YES
        if isinstance(definition, AttributeMap):
            return self._covers_map("load_attribute_maps", "load_attribute_map_instances", definition, instance)
        if isinstance(definition, ChannelMap):
            return self._covers_map("load_channel_maps", "load_channel_map_instances", definition, instance)
        return self._lists("load_channels", definition)

    def selects_some(self, definition: Any) -> bool:
        """Whether any instance of a map is selected."""
        kind = "attribute" if isinstance(definition, AttributeMap) else "channel"
        return any(_definition_of(load) is definition for load in self.elements(f"load_{kind}_map_instances"))

    def elements(self, option: str) -> list[Any]:
        """What an option lists, as far as it is known."""
        return [element for element in _flat(self.loads[option]) if element is not _OPEN]

    def _lists(self, option: str, definition: Any) -> Covers:
        listed = list(_flat(self.loads[option]))
        if any(element is definition for element in listed):
            return Covers.YES
        return Covers.MAYBE if any(element is _OPEN for element in listed) else Covers.NO

    def _covers_map(self, whole: str, single: str, definition: Any, instance: Values | None) -> Covers:
        all_of_it = self._lists(whole, definition)
        if all_of_it is Covers.YES:
            return Covers.YES
        loads = list(_flat(self.loads[single]))
        mine = [load for load in loads if _definition_of(load) is definition]
        keys = {load.instance for load in mine if not isinstance(load, MadeLoad)}
        wanted = () if instance is None else instance.known
        is_known = instance is not None and not instance.is_open and all(isinstance(key, str) for key in wanted)
        if is_known and wanted and keys.issuperset(wanted):
            return Covers.YES
        can_be_there = any(isinstance(load, MadeLoad) for load in mine) or any(load is _OPEN for load in loads)
        if all_of_it is Covers.MAYBE or can_be_there or (mine and not (is_known and instance is not None)):
            return Covers.MAYBE
        if mine and instance is not None and not instance.is_sure:
            return Covers.MAYBE
        return Covers.NO


def best(selections: Sequence[Selection], definition: Any, instance: Values | None) -> Covers:
    """Whether any of several ways in covers a read."""
    found = {selection.covers(definition, instance) for selection in selections}
    return next((answer for answer in (Covers.YES, Covers.MAYBE) if answer in found), Covers.NO)


def _is_empty(values: Values) -> bool:
    """Whether a field is given its default, which counts as not given."""
    single = values.single
    return single == () if isinstance(single, tuple) else isinstance(single, Items) and single.exact == ()


class _Open(Enum):
    OPEN = "there may be more"


_OPEN: Final = _Open.OPEN


def _flat(values: Values) -> Iterator[Any]:
    """The elements of the tuples that an option may be."""
    if values.is_open:
        yield _OPEN
    for value in values.known:
        if isinstance(value, Items):
            yield from value.element.known
            if value.element.is_open:
                yield _OPEN
        elif isinstance(value, tuple | list):
            yield from value
        elif not isinstance(value, PLAIN):
            yield _OPEN


def _definition_of(load: Any) -> Any:
    match load:
        case AttributeMapLoad():
            return load.attribute_map
        case ChannelMapLoad():
            return load.channel_map
        case MadeLoad():
            return load.definition
        case _:
            return None
