"""Which records leave rows of Attribute stores behind, and what the rows are to become.

    the record has                                  marked is
    ---------------------------------------------   ------------------------------------------------------------------
    a write of an Attribute that is synced          the row of this Flow ID, in all stores of the Flow
    a start, a fork                                 the same: the row of an earlier run is replaced
    a change of the stores in the FlowConfig        the same, in the new stores

An image is whole: all Attributes that are synced, also those without a value. So a row heals with the next change,
whatever it missed (a store that was named later, an Attribute that the code has begun to sync). A column is an
Attribute; that of an AttributeMap has all its instances.
"""

from __future__ import annotations

import msgspec

from dex.names import split_physical_name
from dex.wire.specs import FlowSpec
from dexray.engine.live import LiveFlow, Pending
from dexray.engine.settings import HostSettings
from dexray.journal.interface import StoreMark
from dexray.machine.events import AttributesWritten, FlowConfigUpdated, FlowForked, FlowStarted
from dexray.stores import Image

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[dict[str, bytes | dict[str, bytes] | None]] = msgspec.msgpack.Decoder(
    dict[str, bytes | dict[str, bytes] | None]
)


def stores_of(live: LiveFlow, settings: HostSettings) -> tuple[str, ...]:
    """The stores that the FlowConfig names, or the engine's default."""
    named = live.flow.state.config.attribute_store_names
    return settings.default_attribute_stores if named is None else tuple(dict.fromkeys(named))


def store_marks(
    live: LiveFlow, pending: Pending, settings: HostSettings, spec: FlowSpec | None
) -> tuple[StoreMark, ...]:
    """The marks that ride with the record of these events."""
    if spec is None or not spec.synced:
        return ()
    stores = stores_of(live, settings)
    if not stores or not _leaves_behind(pending, spec):
        return ()
    image = _encoder.encode(_image(live, spec))
    return tuple(StoreMark(store, live.flow_id, image) for store in stores)


def decode_image(image: bytes) -> Image:
    return _decoder.decode(image)


def _leaves_behind(pending: Pending, spec: FlowSpec) -> bool:
    for event in pending.events:
        match event:
            case AttributesWritten(attributes=attributes):
                if any(name.partition("/")[0] in spec.synced for name in attributes):
                    return True
            case FlowStarted() | FlowForked():
                return True
            case FlowConfigUpdated(config=config):
                if config.attribute_store_names is not None:
                    return True
    return False


def _image(live: LiveFlow, spec: FlowSpec) -> dict[str, bytes | dict[str, bytes] | None]:
    attributes = live.flow.state.attributes
    image: dict[str, bytes | dict[str, bytes] | None] = {}
    maps: dict[str, dict[str, bytes]] = {}
    for name in spec.synced:
        if name in spec.attribute_maps:
            image[name] = maps[name] = {}
        else:
            image[name] = attributes.get(name)
    if maps:
        for physical, value in attributes.items():
            name, instance = split_physical_name(physical)
            if instance is not None and name in maps:
                maps[name][instance] = value
    return image
