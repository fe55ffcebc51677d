"""What clients, the Directory and FlowActors say to each other over Ray: bytes in, bytes out.

Errors travel as data, so that nothing depends on how Ray pickles an exception.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dex.values import DEFAULT_LIMIT
from dex.wire.service import ServiceFailure
from dexray.settings import AttributeStore, masked

DIRECTORY = "dexray-directory"


def flow_actor_name(index: int) -> str:
    """The name of a FlowActor: its Ray name, and its name as an owner in the database."""
    return f"flow-actor-{index}"


class EngineConfig(Struct, frozen=True, kw_only=True):
    """What a Directory and its FlowActors are made with. It travels to workers that the raylet starts, also after a
    restart.
    """

    database_url: str
    namespace: str
    flow_actors: int
    max_flow_actors: int
    flows_per_actor: int
    lease_seconds: float
    frozen_seconds: float = 60.0
    idle_flows: int
    drain_seconds: float = 5.0
    hold: bool = False
    retention: float = 0.0  # seconds
    blob_store: str = ""
    max_value_bytes: int = DEFAULT_LIMIT
    cluster_id: str
    address: str = ""
    attribute_stores: tuple[AttributeStore, ...] = ()
    default_attribute_stores: tuple[str, ...] = ()
    engine_resource: str = ""

    def __repr__(self) -> str:
        return f"EngineConfig({masked(self.database_url)!r}, namespace={self.namespace!r})"

    def differences(self, other: EngineConfig) -> tuple[str, ...]:
        """The names of the settings in which another one differs. Where an engine is does not count."""
        places = {"database_url", "namespace", "cluster_id", "address"}
        return tuple(
            name
            for name in self.__struct_fields__
            if name not in places and getattr(self, name) != getattr(other, name)
        )


class Ok(Struct, frozen=True, tag="ok", array_like=True):
    answer: bytes


class Failed(Struct, frozen=True, tag="failed", array_like=True):
    failure: ServiceFailure


class Elsewhere(Struct, frozen=True, tag="elsewhere", array_like=True):
    """Another owner has the Flow."""

    owner: str


class BadCode(Struct, frozen=True, tag="bad code", array_like=True):
    """The code of a deployment does not load on a worker; it was not deployed."""

    reason: str


Reply = Ok | Failed | Elsewhere | BadCode


class ActorLoad(Struct, frozen=True, array_like=True):
    name: str
    active: int = 0
    lasting: int = 0
    queued: int = 0
    in_memory: int = 0
    attempts: int = 0
    pid: int = 0
    node: str = ""  # Ray's id of it


class ClusterView(Struct, frozen=True, array_like=True):
    """What a client has to know to find its way. The loads are some seconds old.

    placed: in an answer to `place`, the FlowActor that has got room. other_settings: those in which the engine differs
    from what the client asked for; the engine's are in force.
    """

    actors: tuple[ActorLoad, ...]
    flows_per_actor: int = 0
    database: str = ""
    placed: str = ""
    other_settings: tuple[str, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_reply: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_view: msgspec.msgpack.Decoder[ClusterView] = msgspec.msgpack.Decoder(ClusterView)


def encode(message: Any) -> bytes:
    return _encoder.encode(message)


def decode_reply(data: bytes) -> Reply:
    return _reply.decode(data)


def decode_view(data: bytes) -> ClusterView:
    return _view.decode(data)
