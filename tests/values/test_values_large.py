"""Large arrays and tables: written with one copy, read where they lie, the same whatever way they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dex import ValueMappingError
from dex.values import CodecRegistry, attach, detach, to_readable
from dex.values._format import SEGMENT_FROM

REGISTRY = CodecRegistry()
MANY = SEGMENT_FROM // 8 + 5  # float64s that make a segment


def there_and_back(value: Any, hint: Any) -> Any:
    payload = REGISTRY.encode(value, hint, where="v")
    back = REGISTRY.decode(payload, hint, where="v")
    again = REGISTRY.decode(memoryview(payload), hint, where="v")
    assert type(back) is type(again)
    assert REGISTRY.encode_dynamic(back, where="v") == REGISTRY.encode_dynamic(again, where="v")
    return back


# Arrays ---------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D11")
@pytest.mark.parametrize(
    "array",
    [
        np.arange(float(MANY)),
        np.arange(float(2 * MANY))[::2],
        np.asfortranarray(np.arange(float(4 * (MANY // 4))).reshape(4, -1)),
        np.arange(float(MANY)).astype(">f8"),
        np.broadcast_to(np.float64(3), (MANY,)),
        np.zeros(MANY, dtype=[("a", "<f8"), ("b", "<i4", (3,))]),
        np.full(MANY, "ab", dtype="U4"),
    ],
    ids=["plain", "every second", "fortran", "big-endian", "broadcast", "fields", "text"],
)
def test_a_large_array_keeps_dtype_shape_and_items(array: Any) -> None:
    back = there_and_back(array, np.ndarray)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)
    assert not back.flags.writeable
    assert back.copy().flags.writeable


def test_it_is_read_where_it_lies() -> None:
    array = np.arange(float(MANY))
    payload = REGISTRY.encode(array, NDArray[np.float64], where="v")
    back = REGISTRY.decode(payload, NDArray[np.float64], where="v")
    assert np.shares_memory(back, np.frombuffer(payload, dtype=np.uint8))
    assert back.flags.aligned
    assert len(payload) < array.nbytes + 256


def test_one_below_the_limit_of_segments_is_read_into_memory_of_its_own() -> None:
    below = there_and_back(np.zeros(SEGMENT_FROM - 1, dtype=np.uint8), np.ndarray)
    at = there_and_back(np.zeros(SEGMENT_FROM, dtype=np.uint8), np.ndarray)
    assert (below.flags.writeable, at.flags.writeable) == (True, False)


@dataclass
class Batch:
    name: str
    images: list[NDArray[np.uint8]]
    table: pa.Table | None
    raw: bytes


@pytest.mark.statement("D11")
def test_several_in_one_value_keep_their_places() -> None:
    images = [np.full(SEGMENT_FROM + n, n, dtype=np.uint8) for n in range(4)]
    images.insert(2, np.arange(3, dtype=np.uint8))
    batch = Batch("b", images, pa.table({"x": np.arange(MANY)}), bytes(2 * SEGMENT_FROM))
    back = there_and_back(batch, Batch)
    assert [image.tobytes() for image in back.images] == [image.tobytes() for image in images]
    assert back.table == batch.table
    assert (back.name, back.raw) == (batch.name, batch.raw)


def test_a_value_without_large_memory_is_encoded_as_ever() -> None:
    small = np.arange(4.0)
    payload = REGISTRY.encode(small, np.ndarray, where="v")
    head = REGISTRY.encode([np.zeros(SEGMENT_FROM, dtype=np.uint8), small], list[Any], where="v")
    assert payload[:1] == b"\x94"  # an array of four, as before there were segments
    assert payload[1:] in head  # and so within a larger value


def test_a_damaged_one_is_refused() -> None:
    payload = REGISTRY.encode(np.arange(float(MANY)), np.ndarray, where="v")
    with pytest.raises(ValueMappingError, match="v: the value is damaged: it ends before a segment"):
        REGISTRY.decode(payload[:-1], np.ndarray, where="v")


@pytest.mark.statement("D12")
def test_one_above_the_limit_is_refused_with_its_size() -> None:
    with pytest.raises(ValueMappingError, match=r"Attribute a: .* bytes is over the limit of 1,000,000") as refused:
        REGISTRY.encode(np.zeros(1_000_001, dtype=np.uint8), np.ndarray, where="Attribute a", limit=1_000_000)
    assert refused.value.too_large


def test_it_is_detached_and_attached_as_any_other_payload() -> None:
    payload = REGISTRY.encode(np.arange(float(MANY)), np.ndarray, where="v")
    blobs: dict[str, bytes] = {}
    small = detach(payload, blobs)
    assert len(small) < 100
    shared: Any = {name: memoryview(body) for name, body in blobs.items()}
    assert np.array_equal(REGISTRY.decode(attach(small, shared), np.ndarray, where="v"), np.arange(float(MANY)))


def test_people_see_a_summary() -> None:
    payload = REGISTRY.encode(np.arange(float(MANY)), np.ndarray, where="v")
    assert to_readable(payload)["$ndarray"] == {"dtype": "<f8", "shape": [MANY], "items": [float(n) for n in range(8)]}


# Arrow ----------------------------------------------------------------------------------------------------------------

TABLES = {
    "plain": pa.table({"a": [1, None, 3], "b": ["x", "y", None]}),
    "empty": pa.table({"a": pa.array([], type=pa.int64())}),
    "large": pa.table({"a": np.arange(MANY), "b": pa.array(["v"] * MANY).dictionary_encode()}),
    "slice": pa.table({"a": np.arange(4 * MANY)}).slice(7, MANY),
    "chunks": pa.concat_tables([pa.table({"a": [1]}), pa.table({"a": [2, 3]})]),
    "metadata": pa.table({"a": [[1, 2], []]}).replace_schema_metadata({"made": "here"}),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_keeps_schema_chunks_and_rows(name: str) -> None:
    table = TABLES[name]
    for hint in (pa.Table, Any, pa.Table | None):
        back = there_and_back(table, hint)
        assert back.schema.equals(table.schema, check_metadata=True)
        assert back.equals(table)
        assert back.column(0).num_chunks == table.column(0).num_chunks or not table.num_rows


def test_a_slice_does_not_drag_its_whole_along_and_is_read_where_it_lies() -> None:
    table = TABLES["slice"]
    payload = REGISTRY.encode(table, pa.Table, where="v")
    assert len(payload) < 1.1 * table.nbytes
    back = REGISTRY.decode(payload, pa.Table, where="v")
    begin = np.frombuffer(payload, dtype=np.uint8).__array_interface__["data"][0]
    assert begin <= back.column(0).chunk(0).buffers()[1].address < begin + len(payload)


def test_a_record_batch_is_another_type() -> None:
    batch = pa.record_batch({"a": [1, 2]})
    back = there_and_back(batch, pa.RecordBatch)
    assert type(back) is pa.RecordBatch
    assert back.equals(batch)
    empty = there_and_back(batch.slice(0, 0), pa.RecordBatch)
    assert (empty.num_rows, empty.schema) == (0, batch.schema)
    with pytest.raises(ValueMappingError, match=r"v: expected .*Table.*, got .*RecordBatch"):
        REGISTRY.encode(batch, pa.Table, where="v")
    with pytest.raises(ValueMappingError, match=r"v: expected .*Table"):
        REGISTRY.decode(REGISTRY.encode(batch, pa.RecordBatch, where="v"), pa.Table, where="v")


def test_a_table_from_json_is_rows_or_columns_and_people_see_a_summary() -> None:
    expected = pa.table({"a": [1, 2], "b": ["x", "y"]})
    rows = REGISTRY.decode_json('[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]', pa.Table)
    assert rows == expected
    assert REGISTRY.decode_json({"a": [1, 2], "b": ["x", "y"]}, pa.Table) == expected
    assert type(REGISTRY.decode_json({"a": [1]}, pa.RecordBatch)) is pa.RecordBatch
    with pytest.raises(ValueMappingError, match="expected rows, or columns by name"):
        REGISTRY.decode_json("7", pa.Table)
    shown = to_readable(REGISTRY.encode(expected, pa.Table, where="v"))["$arrow"]
    assert (shown["kind"], shown["rows"], shown["columns"]) == ("Table", 2, {"a": "int64", "b": "string"})


def test_other_arrow_values_are_refused() -> None:
    with pytest.raises(ValueMappingError, match=r"pyarrow\.lib\.\w+ can't be stored"):
        REGISTRY.encode_dynamic(pa.array([1]), where="v")
