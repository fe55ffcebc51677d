"""Large state: maps with many keys and lists without an end, kept in pieces of a bearable size.

An AttributeMap with a value for each of 100,000 keys is 100,000 small values; a single dict is one value that is
written whole for each change. Between them lie two layouts:

- **hash-partitioned**: keys are spread over a few buckets by a hash, a bucket is one dict. A call loads and locks the
  one bucket that its key is in, so calls for other buckets do not wait for it.
- **chunked**: a list that only grows is a sequence of chunks. The last one is an Attribute, which every call has at
  hand; full, it moves into the map, and readers load the chunks that they want.

If a process dies in the middle: a call changes one bucket, or the last chunk and the map together, or nothing.

Run it with `python -m examples.patterns.large_state`.
"""

from __future__ import annotations

from uuid import uuid4
from zlib import crc32

from dex import (
    Attribute,
    AttributeMap,
    Client,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCInvokeOptions,
    RPCResult,
    rpc,
)

BUCKETS = 16
CHUNK = 100

stock: AttributeMap[dict[str, int]] = AttributeMap("stock", dict[str, int])
full: AttributeMap[list[str]] = AttributeMap("full", list[str])
last: Attribute[list[str]] = Attribute("last", list[str])


def bucket_of(article: str) -> str:
    return str(crc32(article.encode()) % BUCKETS)


def chunk_of(entry: int) -> str:
    return f"{entry // CHUNK:06}"


class WarehouseFlow(Flow[None]):
    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(stock, full, last)

    @rpc(is_transactional=True)
    def deliver(self, context: Context, input: tuple[str, int]) -> RPCResult[int]:
        """The caller loads and locks the bucket of the article."""
        article, count = input
        bucket = stock.get(context, bucket_of(article)) or {}
        left = bucket.get(article, 0) + count
        stock.set(context, bucket_of(article), {**bucket, article: left})
        return RPCResult(left)

    @rpc(lock_attributes=(last.lock(),))
    def note(self, context: Context, input: str) -> RPCResult[int]:
        """Adds an entry, and tells its number. Loads no chunk."""
        chunk = [*(last.get(context) or []), input]
        number = full.get_map_size(context) * CHUNK + len(chunk) - 1
        if len(chunk) == CHUNK:
            full.set(context, chunk_of(number), chunk)
        last.set(context, chunk if len(chunk) < CHUNK else None)
        return RPCResult(number)

    @rpc
    def page(self, context: Context, input: int) -> RPCResult[list[str]]:
        """The chunk that an entry is in, which the caller loads."""
        return RPCResult(full.get(context, chunk_of(input)) or last.get(context) or [])


flow = WarehouseFlow()
registry = Registry([flow])


def load_bucket(article: str) -> RPCInvokeOptions:
    bucket = bucket_of(article)
    return RPCInvokeOptions(
        lock_attribute_map_instances=(stock.lock(bucket),), load_attribute_map_instances=(stock.load(bucket),)
    )


def load_chunk(entry: int) -> RPCInvokeOptions:
    return RPCInvokeOptions(load_attribute_map_instances=(full.load(chunk_of(entry)),))


def work(client: Client, flow_id: str) -> list[str]:
    for article, count in (("bolts", 100), ("nuts", 20), ("bolts", -30)):
        left = client.invoke_rpc(flow.deliver, flow_id, (article, count), options=load_bucket(article))
        entry = client.invoke_rpc(flow.note, flow_id, f"{article} {count:+}: {left} left")
    return client.invoke_rpc(flow.page, flow_id, entry, options=load_chunk(entry))


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"warehouse-{uuid4()}"
        client.start_flow(flow, flow_id)
        print(*work(client, flow_id), sep="\n")


if __name__ == "__main__":
    main()
