"""Entity store: a Flow as an object that lives for ever; here the profile of a user.

A Flow without Steps runs until it is stopped, costs a few rows while nobody calls it, and needs no table of one's own.
RPCs are its methods, Attributes its fields. RPCs that hold the same lock come one after the other, so what one reads is
still true when it writes. A call that finds the lock held is refused at once, and made again by the caller.

If a process dies in the middle: a call that was answered is in the database; one that was not is repeated by the client
under its request id, and has its effect once.

Run it with `python -m examples.patterns.entity_store`.
"""

from __future__ import annotations

import time
from uuid import uuid4

from dex import (
    Attribute,
    AttributeMap,
    Client,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RpcLockConflictError,
    RPCResult,
    StopFlowOptions,
    rpc,
)

revision = Attribute("revision", int)
fields = AttributeMap("fields", str)


class UserProfileFlow(Flow[None]):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(revision, fields)

    @rpc(lock_attributes=(revision.lock(),))
    def update(self, context: Context, input: dict[str, str | None]) -> RPCResult[int]:
        """Sets fields, removes those that are None, and tells the new revision."""
        for name, value in input.items():
            fields.set(context, name, value)
        revision.set(context, revision.get(context) + 1)
        return RPCResult(revision.get(context))

    @rpc(load_attribute_maps=(fields,))
    def profile(self, context: Context) -> RPCResult[dict[str, str]]:
        names = fields.get_all_instance_keys(context)
        return RPCResult({name: fields.get(context, name) or "" for name in names})


flow = UserProfileFlow()
registry = Registry([flow])


def update(client: Client, user: str, changes: dict[str, str | None]) -> int:
    while True:
        try:
            return client.invoke_rpc(flow.update, user, changes)
        except RpcLockConflictError:
            time.sleep(0.05)  # somebody else is writing


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        user = f"user-{uuid4()}"
        client.start_flow(flow, user)
        update(client, user, {"name": "Ada", "town": "London", "phone": "12 34"})
        print("revision", update(client, user, {"town": "Turin", "phone": None}))
        print(client.invoke_rpc(flow.profile, user))
        client.stop_flow(user, StopFlowOptions(reason="account closed"))


if __name__ == "__main__":
    main()
