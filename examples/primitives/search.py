"""Search: finding Flows by what they are and by what they keep, here the guests of a hotel.

An Attribute with an index is found by its key, a Flow without one writes no entry. A query compares keys and the fields
that every run has (FlowType, ExecutionStatus, StartTime, …) with values, and joins comparisons with AND, OR and NOT;
`docs/search.md` has the whole language. Texts that come from elsewhere go through `quoted`.

What a call has acknowledged, the next search sees: there is nothing to wait for. Pages do not shift when Flows start
meanwhile.

If a process dies in the middle: entries are written with the very record that changes an Attribute, or not at all, so
what is found is what is there.

Run it with `python -m examples.primitives.search`.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

from dex import (
    Attribute,
    AttributeIndex,
    Client,
    Context,
    Flow,
    IndexType,
    PersistenceSchema,
    Registry,
    StartFlowOptions,
    StepList,
    StopFlowOptions,
    StopType,
    quoted,
    rpc,
)

hotel = Attribute("hotel", str, index=AttributeIndex(IndexType.KEYWORD))
town = Attribute("town", str, index=AttributeIndex(IndexType.KEYWORD))
nights = Attribute("nights", int, index=AttributeIndex(IndexType.INT))
wishes = Attribute("wishes", list[str], index=AttributeIndex(IndexType.KEYWORD_ARRAY))
remarks = Attribute("remarks", str, index=AttributeIndex(IndexType.FULL_TEXT, "notes"))


class GuestFlow(Flow[None]):
    """Has no Step: its Attributes are all there is to a guest."""

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step()

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(hotel, town, nights, wishes, remarks)

    @rpc
    def stay_longer(self, context: Context, more: int) -> None:
        nights.set(context, nights.get(context) + more)


flow = GuestFlow()
registry = Registry([flow])

GUESTS: tuple[tuple[str, str, int, list[str], str], ...] = (
    ("Ada", "L'Aquila", 2, ["balcony", "quiet"], "Arrives late, by the night train"),
    ("Ben", "Rome", 7, ["quiet"], "Brings a dog"),
    ("Cleo", "Rome", 1, [], "Late breakfast; the dog stays at home"),
)


def check_in(client: Client, name: str) -> None:
    """Three guests of the hotel of this name."""
    for guest, origin, count, wanted, remark in GUESTS:
        options = (
            StartFlowOptions()
            .with_attribute(hotel, name)
            .with_attribute(town, origin)
            .with_attribute(nights, count)
            .with_attribute(wishes, wanted)
            .with_attribute(remarks, remark)
        )
        client.start_flow(flow, f"{name}/{guest}", None, options)


def questions(client: Client, name: str) -> Iterator[str]:
    """What the hotel asks, and what it is told."""
    here = f"hotel = {quoted(name)}"

    def guests(query: str) -> str:
        page = client.search_flows(f"{here} AND ({query})", 50)
        return ", ".join(sorted(found.flow_id.rpartition("/")[2] for found in page.flows))

    yield "from L'Aquila: " + guests(f"town = {quoted(GUESTS[0][1])}")
    yield "more than one night in quiet: " + guests("nights > 1 AND wishes = 'quiet'")
    yield "not from Rome, or one night: " + guests("NOT town = 'Rome' OR nights = 1")
    yield "with a dog: " + guests("notes = 'dog'")
    client.invoke_rpc(flow.stay_longer, f"{name}/Cleo", 4)
    yield "five nights or seven: " + guests("nights IN (5, 7)")
    client.stop_flow(f"{name}/Ben", StopFlowOptions(StopType.CANCEL, "left early"))
    yield "still here: " + guests("ExecutionStatus = 'Running'")
    yield f"of {client.count_flows(here)} guests"


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        name = f"hotel-{uuid4()}"
        check_in(client, name)
        for line in questions(client, name):
            print(line)


if __name__ == "__main__":
    main()
