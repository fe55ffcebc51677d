"""Cleaning one file: plain pyarrow, which knows nothing of Flows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from examples.pipelines.files import write_whole

COLUMNS = pa.schema([("station", pa.string()), ("day", pa.date32()), ("degrees", pa.float64())])
"""What every file must have; more columns are left out."""

MADE = b"made"


class BadContent(Exception):
    """The content of a file is wrong, and will be the next time."""


@dataclass(frozen=True)
class Cleaned:
    """A file that is done. dropped: rows without a station, without degrees, impossible, or there twice."""

    file: str
    rows: int
    dropped: int


class Cleaner:
    """Reads, cleans, writes. A Flow gets one of these; put your own in its place."""

    def read(self, source: Path) -> bytes:
        return source.read_bytes()

    def clean(self, source: Path, target: Path) -> Cleaned:
        """Raises BadContent for what can't be cleaned, OSError for what can't be reached now."""
        content = self.read(source)
        fingerprint = hashlib.sha256(content).hexdigest()
        made = _made(target)
        if made is None or made.fingerprint != fingerprint:
            raw = _parse(content)
            table = _clean(raw)
            made = Made(fingerprint, table.num_rows, raw.num_rows - table.num_rows)
            marked = table.replace_schema_metadata({MADE: json.dumps(asdict(made))})
            write_whole(target, lambda partial: pq.write_table(marked, partial))
        return Cleaned(source.name, made.rows, made.dropped)


@dataclass(frozen=True)
class Made:
    """What a Parquet file says of itself: from which content it was made, and how many rows it kept and left out."""

    fingerprint: str
    rows: int
    dropped: int


def _made(target: Path) -> Made | None:
    if not target.exists():
        return None
    metadata = pq.read_schema(target).metadata or {}
    return Made(**json.loads(metadata[MADE])) if MADE in metadata else None


def _parse(content: bytes) -> pa.Table:
    options = csv.ConvertOptions(column_types=COLUMNS, include_columns=COLUMNS.names, strings_can_be_null=True)
    try:
        return csv.read_csv(pa.BufferReader(content), convert_options=options)
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise BadContent(str(error)) from error


def _clean(raw: pa.Table) -> pa.Table:
    """The rows that make sense, each once, in order."""
    possible = pc.and_(pc.greater_equal(raw["degrees"], -90.0), pc.less_equal(raw["degrees"], 60.0))
    kept = raw.filter(pc.and_(pc.is_valid(raw["station"]), possible))  # no degrees: null, which is not kept
    once = kept.group_by(COLUMNS.names).aggregate([])
    return once.sort_by([(name, "ascending") for name in COLUMNS.names])
