"""The tables, and how a database is brought to their newest version.

What is where
- `runs`: one row a run, the only rows of the hot path that change. `epoch` is the fence. At most one run of a
  Flow ID is current; the partial unique index says so to every writer.
- `events`: the records. A plain table with a key beside it, not a clustered one: a group commit of a hundred runs
  then writes the end of one table instead of a hundred places of it (half the time of a commit, measured).
- `checkpoints`: the newest checkpoint of a run. `requests`: answers of writes, by Flow ID, so that they
  outlive the run.
- `blobs` by content, and `blob_refs`: which runs hold which blob, so that a blob can be freed after its last run.
- `blob_places`: which object of a blob store holds a blob whose body is not here; `blob_trash`: objects to be deleted;
  `blob_stores`: under which name a store keeps the objects of this database.
- `removed_runs`: runs that are gone for every reader, and whose events and blobs are still being cleared away.
- `deployments`: code by content. `flow_deployments`: the newest one of each Flow type.
- `streams`, one row a Stream, and `stream_messages`: see `dexray.journal.streams`.
- `attribute_index`: what can be searched of a run beyond its row: see `dexray.journal.searching`.
- `store_marks`: rows of users' own tables that are behind: see `dexray.engine.stores`.
- `owners`: how many lives each owner has begun; see `Journal.begin_life`.
- `leases`, `schema_version`.

A new database gets the newest tables at once and is marked as having every version; an old one goes through
the migrations that it lacks, in order. So a change of the tables is made twice: in the tables here, and as
one more entry at the end of `MIGRATIONS`. Entries are never changed once released.
`tests/journal/test_journal_schema.py` shows the two ways give the same tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    insert,
    inspect,
    not_,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import TEXT as PostgresText

from dexray.journal.interface import JournalRefused

# Ids are compared byte by byte everywhere, never by the language of a server: pages go by their order.
Ident = Text().with_variant(PostgresText(collation="C"), "postgresql")

metadata = MetaData()

schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("applied_at", Text, nullable=False, server_default=func.current_timestamp()),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", Ident, primary_key=True),
    Column("flow_id", Ident, nullable=False),
    Column("flow_type", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("owner", Ident, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("closed_at", Double),
    Column("next_wake", Double, nullable=False),
    Column("is_current", Boolean, nullable=False),
    Column("parent", Ident),  # of a SubFlow: the Flow ID of its parent
)

# SQLite takes a partial index only for a query that says its condition in the same words; a bare column would be
# written in other words in the index than in a query.
_IS_CURRENT = text("is_current = 1")

is_open = runs.c.is_current & runs.c.closed_at.is_(None)

Index(
    "runs_current",
    runs.c.flow_id,
    unique=True,
    sqlite_where=_IS_CURRENT,
    postgresql_where=runs.c.is_current,
)
Index("runs_open", runs.c.owner, runs.c.run_id, sqlite_where=is_open, postgresql_where=is_open)
# Of the latest runs alone, in other words than the condition of `runs_current`: SQLite would rather walk that index,
# because it is the smaller one, and sort.
is_latest = runs.c.is_current.is_(true())

_newest = Index("runs_newest", runs.c.started_at.desc(), runs.c.run_id)
_replaced = Index(
    "runs_replaced",
    runs.c.flow_id,
    sqlite_where=text("is_current = 0"),
    postgresql_where=not_(runs.c.is_current),
)
_children = Index(
    "runs_of_parent",
    runs.c.parent,
    sqlite_where=runs.c.parent.is_not(None),
    postgresql_where=runs.c.parent.is_not(None),
)

# For retention, which looks for the runs that were closed first.
runs_closed = Index(
    "runs_closed",
    runs.c.closed_at,
    runs.c.run_id,
    sqlite_where=runs.c.closed_at.is_not(None),
    postgresql_where=runs.c.closed_at.is_not(None),
)

removed_runs = Table("removed_runs", metadata, Column("run_id", Ident, primary_key=True))

events = Table(
    "events",
    metadata,
    Column("run_id", Ident, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("run_id", Ident, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

requests = Table(
    "requests",
    metadata,
    Column("flow_id", Ident, primary_key=True),
    Column("request_id", Ident, primary_key=True),
    Column("run_id", Ident, nullable=False),
    Column("answer", LargeBinary, nullable=False),
)

blobs = Table(
    "blobs",
    metadata,
    Column("hash", Ident, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

blob_refs = Table(
    "blob_refs",
    metadata,
    Column("run_id", Ident, primary_key=True),
    Column("hash", Ident, primary_key=True),
    sqlite_with_rowid=False,
)
Index("blob_refs_hash", blob_refs.c.hash)

# Values that lie outside: see `dexray.journal.blobs`.
blob_places = Table(
    "blob_places",
    metadata,
    Column("hash", Ident, primary_key=True),
    Column("store", Text, nullable=False),
    Column("name", Ident, nullable=False, unique=True),
)

blob_trash = Table(
    "blob_trash",
    metadata,
    Column("name", Ident, primary_key=True),
    Column("store", Text, nullable=False),
)

blob_stores = Table(
    "blob_stores",
    metadata,
    Column("store", Ident, primary_key=True),
    Column("prefix", Text, nullable=False),
)

deployments = Table(
    "deployments",
    metadata,
    Column("deployment_id", Ident, primary_key=True),
    Column("deployed_at", Double, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("code", LargeBinary, nullable=False),
)

flow_deployments = Table(
    "flow_deployments",
    metadata,
    Column("flow_type", Ident, primary_key=True),
    Column("deployment_id", Ident, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Ident, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)

owners = Table(
    "owners",
    metadata,
    Column("owner", Ident, primary_key=True),
    Column("life", BigInteger, nullable=False),
)

streams = Table(
    "streams",
    metadata,
    Column("flow_id", Ident, primary_key=True),
    Column("stream", Ident, primary_key=True),
    Column("last_seq", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
)

stream_messages = Table(
    "stream_messages",
    metadata,
    Column("flow_id", Ident, primary_key=True),
    Column("stream", Ident, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("created_at", Double, nullable=False),
    Column("source", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

# An entry is found by its word, its whole number or its real number; the other two are NULL, and in no index.
attribute_index = Table(
    "attribute_index",
    metadata,
    Column("run_id", Ident, primary_key=True),
    Column("key", Ident, primary_key=True),
    Column("source", Ident, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("type", Ident, nullable=False),
    Column("word", Ident),
    Column("whole", BigInteger),
    Column("real", Double),
    Column("shown", Text),
    sqlite_with_rowid=False,
)
for _column in (attribute_index.c.word, attribute_index.c.whole, attribute_index.c.real):
    Index(
        f"attribute_index_{_column.name}",
        attribute_index.c.key,
        _column,
        attribute_index.c.run_id,
        sqlite_where=_column.is_not(None),
        postgresql_where=_column.is_not(None),
    )

# `image` is what the row of the Flow ID is to become, and `run_id` and `seq` name the record that said so.
store_marks = Table(
    "store_marks",
    metadata,
    Column("store", Ident, primary_key=True),
    Column("flow_id", Ident, primary_key=True),
    Column("run_id", Ident, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("marked_at", Double, nullable=False),
    Column("image", LargeBinary, nullable=False),
)
Index("store_marks_of_run", store_marks.c.run_id)


@dataclass(frozen=True, slots=True)
class Migration:
    """Brings a database from the version before to `version`; runs in the transaction that records it."""

    version: int
    name: str
    upgrade: Callable[[Connection], None]


def _create_everything(connection: Connection) -> None:
    metadata.create_all(connection, checkfirst=False)


def _create_streams(connection: Connection) -> None:
    metadata.create_all(connection, tables=[streams, stream_messages], checkfirst=False)


def _create_search(connection: Connection) -> None:
    connection.execute(text("DROP INDEX runs_newest"))  # it held the current runs alone
    collation = ' COLLATE "C"' if connection.dialect.name == "postgresql" else ""
    connection.execute(text(f"ALTER TABLE runs ADD COLUMN parent TEXT{collation}"))
    for index in (_newest, _replaced, _children):
        index.create(connection)
    metadata.create_all(connection, tables=[attribute_index], checkfirst=False)


def _create_removals(connection: Connection) -> None:
    removed_runs.create(connection)
    runs_closed.create(connection)


def _create_places(connection: Connection) -> None:
    metadata.create_all(connection, tables=[blob_places, blob_trash, blob_stores], checkfirst=False)


def _create_store_marks(connection: Connection) -> None:
    metadata.create_all(connection, tables=[store_marks], checkfirst=False)


def _create_owners(connection: Connection) -> None:
    owners.create(connection)


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "runs, events and what goes with them", _create_everything),
    Migration(2, "streams", _create_streams),
    Migration(3, "search", _create_search),
    Migration(4, "removal of runs", _create_removals),
    Migration(5, "values outside of the database", _create_places),
    Migration(6, "Attribute stores", _create_store_marks),
    Migration(7, "lives of owners", _create_owners),
)


def version_of(connection: Connection, known: tuple[Migration, ...] = MIGRATIONS) -> int:
    """The version of the database's schema; 0 for a database without one.

    Raises `JournalRefused` for a schema that is newer than `known`, and for tables that are not ours.
    """
    present = inspect(connection)
    if not present.has_table(schema_version.name):
        taken = sorted({table.name for table in metadata.sorted_tables}.intersection(present.get_table_names()))
        if taken:
            raise JournalRefused(
                f"The database has tables that are not dexray's but bear the names of its own ({', '.join(taken)}): "
                "give dexray a database of its own."
            )
        return 0
    columns = {column["name"] for column in present.get_columns(schema_version.name)}
    if not columns.issuperset(column.name for column in schema_version.columns):
        raise JournalRefused(
            "The database has a table schema_version that is not dexray's: give dexray a database of its own."
        )
    version = connection.execute(select(func.coalesce(func.max(schema_version.c.version), 0))).scalar_one()
    newest = known[-1].version
    if version > newest:
        raise JournalRefused(
            f"The database has schema version {version}, and this dexray knows versions up to {newest}: "
            "use the dexray that made it or a newer one, or another database."
        )
    return int(version)


def upgrade(connection: Connection, known: tuple[Migration, ...] = MIGRATIONS) -> None:
    """Brings the database to the newest version of `known`, within the caller's transaction."""
    version = version_of(connection, known)
    if version == 0:
        known[0].upgrade(connection)
    else:
        for migration in known:
            if migration.version > version:
                migration.upgrade(connection)
    missing = [{"version": m.version, "name": m.name} for m in known if m.version > version]
    if missing:
        connection.execute(insert(schema_version), missing)
