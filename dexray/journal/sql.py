"""The Journal over any SQL database that has a `Database`.

Each method is one transaction, and reads plainly: the rules of appends are in `verdicts`, their statements in
`appending`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, not_, select, update

from dexray.journal import marks, removal, rows, searching, streams
from dexray.journal.appending import Appender
from dexray.journal.blob_store import BlobStore
from dexray.journal.blobs import NotStaged, OutsideBlobs, Staged
from dexray.journal.database import Database
from dexray.journal.interface import (
    NEVER,
    Append,
    FoundRun,
    Journal,
    Lease,
    LoadedRun,
    NewMessage,
    Outcome,
    Outlived,
    Record,
    RunRow,
    StoredDeployment,
    StoredMark,
    StoredMessage,
)
from dexray.journal.schema import (
    MIGRATIONS,
    blob_places,
    blobs,
    checkpoints,
    deployments,
    events,
    flow_deployments,
    is_latest,
    is_open,
    leases,
    owners,
    requests,
    runs,
    upgrade,
)
from dexray.search import Condition

logger = logging.getLogger("dexray.journal")


class SqlJournal(Journal):
    """See `dexray.journal.interface.Journal` for what every method promises."""

    def __init__(self, database: Database, store: BlobStore | None = None) -> None:
        """store: where large values lie, when that is not in the database."""
        self._database = database
        self._outside = OutsideBlobs(database, store)
        self._appender = Appender(database)
        self._current_runs = select(*rows.RUN_COLUMNS).where(database.among(runs.c.flow_id), runs.c.is_current)
        self._loaded_runs = select(*rows.RUN_COLUMNS).where(database.among(runs.c.run_id))
        newest = select(checkpoints.c.run_id, checkpoints.c.seq, checkpoints.c.body)
        self._loaded_checkpoints = newest.where(database.among(checkpoints.c.run_id))
        known = runs.outerjoin(checkpoints, checkpoints.c.run_id == runs.c.run_id)
        is_tail = and_(events.c.run_id == runs.c.run_id, events.c.seq > func.coalesce(checkpoints.c.seq, 0))
        both, tail = database.row_by_row(known, events, is_tail, events.c.seq)
        self._loaded_tails = (
            select(tail.c.run_id, *(tail.c[column.name] for column in rows.RECORD_COLUMNS))
            .select_from(both)
            .where(database.among(runs.c.run_id))
        )

    def migrate(self) -> None:
        self._database.migrate(lambda connection: upgrade(connection, MIGRATIONS))

    # Appends

    def append(self, batch: Sequence[Append]) -> list[Outcome]:
        if not batch:
            return []
        bodies = {digest: body for record in batch for digest, body in record.blobs.items()}
        while True:
            staged = self._outside.stage(bodies) if bodies else None
            try:
                return self._append(batch, staged)
            except NotStaged:
                logger.debug("a value was freed between two looks: it is put again")

    def _append(self, batch: Sequence[Append], staged: Staged | None) -> list[Outcome]:
        careful = False

        def work(connection: Connection) -> list[Outcome]:
            # What makes a batch begin again may be one that answers a request that has an answer. That is rare, and not
            # looked for each time.
            nonlocal careful
            was, careful = careful, True
            return self._appender.append(connection, batch, careful=was, staged=staged)

        try:
            return self._database.write(work, prepared=True)
        except Exception as error:
            if not self._database.is_duplicate(error):
                raise
        return self._database.write(work, prepared=True)

    def read_back(self, batch: Sequence[Append]) -> list[Outcome | None]:
        # A write, though it writes nothing: it queues behind an append of ours that may still be on its way to the
        # disk.
        return self._database.write(lambda connection: self._appender.read_back(connection, batch), prepared=True)

    # Owners

    def begin_life(self, owner: str) -> None:
        # Not "or update": the row is there from the first life on, and two first lives meet in its key.
        first = self._database.insert_if_new(owners)
        count = update(owners).where(owners.c.owner == owner).values(life=owners.c.life + 1).returning(owners.c.life)

        def work(connection: Connection) -> int:
            connection.execute(first, {"owner": owner, "life": 0})
            return int(connection.execute(count).scalar_one())

        self._appender.life = (owner, self._database.write(work))

    def claim(self, run_ids: Sequence[str], owner: str) -> dict[str, int]:
        statement = (
            update(runs)
            .where(self._database.among(runs.c.run_id), runs.c.owner == owner)
            .values(epoch=runs.c.epoch + 1)
            .returning(runs.c.run_id, runs.c.epoch)
        )
        ids = self._database.ids(run_ids)

        def work(connection: Connection) -> dict[str, int]:
            claimed = _pairs(connection.execute(statement, {"ids": ids}))
            if self._appender.life is not None:
                # Looked at when the rows are locked: an heir that begins later claims them after us.
                mine, life = self._appender.life
                newest = connection.execute(select(owners.c.life).where(owners.c.owner == mine)).scalar_one_or_none()
                if newest != life:
                    raise Outlived(f"a later life of {mine} has begun ({newest}, this is {life})")
            return claimed

        return self._database.write(work)

    def reassign(self, from_owner: str, to_owner: str, limit: int) -> list[str]:
        if from_owner == to_owner:
            raise ValueError(
                f"Runs of owner {from_owner!r} can't be reassigned to itself: `claim` raises their epochs."
            )
        # Two statements, because a database may evaluate a LIMIT with locks inside another statement more than once.
        chosen = (
            select(runs.c.run_id)
            .where(runs.c.owner == from_owner, is_open)
            .order_by(runs.c.run_id)
            .limit(max(0, limit))
            .with_for_update()
        )
        move = (
            update(runs)
            .where(self._database.among(runs.c.run_id))
            .values(owner=to_owner, epoch=runs.c.epoch + 1)
            .returning(runs.c.flow_id)
        )

        def work(connection: Connection) -> list[str]:
            ids = self._database.ids(connection.execute(chosen).scalars())
            return list(connection.execute(move, {"ids": ids}).scalars())

        return self._database.write(work)

    def move(self, run_id: str, from_owner: str, to_owner: str) -> bool:
        statement = (
            update(runs)
            .where(runs.c.run_id == run_id, runs.c.owner == from_owner)
            .values(owner=to_owner, epoch=runs.c.epoch + 1)
        )
        return self._database.write(lambda connection: connection.execute(statement).rowcount == 1)

    # Runs

    def current_run(self, flow_id: str) -> RunRow | None:
        return self._run(and_(runs.c.flow_id == flow_id, runs.c.is_current))

    def current_runs(self, flow_ids: Iterable[str]) -> list[RunRow]:
        ids = {"ids": self._database.ids(flow_ids)}
        found = self._database.read(lambda connection: connection.execute(self._current_runs, ids).all(), single=True)
        return [rows.run_row(row) for row in found]

    def find_run(self, run_id: str) -> RunRow | None:
        return self._run(runs.c.run_id == run_id)

    def load(self, run_id: str) -> LoadedRun | None:
        return self.load_all((run_id,)).get(run_id)

    def load_all(self, run_ids: Iterable[str]) -> dict[str, LoadedRun]:
        ids = {"ids": self._database.ids(run_ids)}

        def work(connection: Connection) -> dict[str, LoadedRun]:
            found = [rows.run_row(row) for row in connection.execute(self._loaded_runs, ids)]
            newest = {run_id: (seq, body) for run_id, seq, body in connection.execute(self._loaded_checkpoints, ids)}
            tails: dict[str, list[Record]] = {row.run_id: [] for row in found}
            for run_id, *record in connection.execute(self._loaded_tails, ids):
                tails[run_id].append(rows.record(record))
            loaded: dict[str, LoadedRun] = {}
            for row in found:
                seq, checkpoint = newest.get(row.run_id, (0, None))
                # Put in order here: they come so already, and the database would copy all bodies to see to it.
                tail = sorted(tails[row.run_id], key=lambda record: record.seq)
                loaded[row.run_id] = LoadedRun(row, checkpoint, seq, tuple(tail))
            return loaded

        return self._database.read(work)

    def records(self, run_id: str, after_seq: int, limit: int) -> list[Record]:
        is_there = select(runs.c.run_id).where(runs.c.run_id == run_id)

        def work(connection: Connection) -> list[Record]:
            if connection.execute(is_there).one_or_none() is None:
                return []
            return _records(connection, run_id, after_seq, max(0, limit))

        return self._database.read(work)

    def open_runs(self, owner: str, after_run_id: str, limit: int, due_by: float = NEVER) -> list[RunRow]:
        page = select(*rows.RUN_COLUMNS).where(runs.c.owner == owner, is_open, runs.c.run_id > after_run_id)
        if due_by < NEVER:
            page = page.where(runs.c.next_wake <= due_by)
        return self._runs(page.order_by(runs.c.run_id).limit(max(0, limit)))

    def owners_of_open_runs(self) -> dict[str, int]:
        count = select(runs.c.owner, func.count()).where(is_open).group_by(runs.c.owner)
        return self._database.read(lambda connection: _pairs(connection.execute(count)), single=True)

    def list_runs(
        self, *, status: str = "", flow_type: str = "", page_size: int = 100, page_token: str = ""
    ) -> tuple[list[RunRow], str]:
        """Raises ValueError for a page size below 1 and for a token that isn't one."""
        if page_size < 1:
            raise ValueError(f"A page of {page_size} runs can't be listed: page_size is at least 1.")
        page = select(*rows.RUN_COLUMNS).where(is_latest)
        if status:
            page = page.where(runs.c.status == status)
        if flow_type:
            page = page.where(runs.c.flow_type == flow_type)
        return rows.cut(self._runs(rows.page_of(page, page_size, page_token)), page_size)

    def search_runs(
        self, condition: Condition, *, latest_only: bool, page_size: int = 100, page_token: str = ""
    ) -> tuple[list[FoundRun], str]:
        if page_size < 1:
            raise ValueError(f"A page of {page_size} runs can't be found: page_size is at least 1.")
        return self._database.read(
            lambda connection: searching.search(
                connection, self._database, condition, latest_only, page_size, page_token
            )
        )

    def count_runs(self, condition: Condition, *, latest_only: bool) -> int:
        return self._database.read(lambda connection: searching.count(connection, condition, latest_only))

    def index_types(self, keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
        wanted = list(keys)
        return self._database.read(lambda connection: searching.types_of(connection, wanted))

    def recorded_answer(self, flow_id: str, request_id: str) -> bytes | None:
        answer = select(requests.c.answer).where(requests.c.flow_id == flow_id, requests.c.request_id == request_id)
        return self._database.read(lambda connection: connection.execute(answer).scalar_one_or_none(), single=True)

    # Removal

    def runs_of(self, flow_id: str) -> list[RunRow]:
        found = self._database.read(lambda connection: connection.execute(removal.runs_of(flow_id)).all())
        return [rows.run_row(row) for row in found]

    def closed_runs(self, before: float, after: tuple[float, str], limit: int) -> list[RunRow]:
        page = select(*rows.RUN_COLUMNS).where(
            runs.c.closed_at.is_not(None),
            runs.c.closed_at < before,
            runs.c.closed_at >= after[0],
            not_(and_(runs.c.closed_at == after[0], runs.c.run_id <= after[1])),
        )
        return self._runs(page.order_by(runs.c.closed_at, runs.c.run_id).limit(max(0, limit)))

    def remove_run(self, run_id: str) -> bool:
        while self._database.write(lambda connection: removal.thin_streams(connection, run_id)):
            pass
        return self._database.write(lambda connection: removal.remove(connection, self._database, run_id))

    def clear_removed(self, limit: int) -> bool:
        if not self._database.read(removal.has_leftovers):
            return False
        return self._database.write(lambda connection: removal.clear(connection, limit))

    def free_blobs(self, after: str, limit: int) -> tuple[int, str]:
        unused, last = self._database.read(lambda connection: removal.unused_blobs(connection, after, limit))
        freed = 0
        if unused:
            freed = self._database.write(lambda connection: removal.free(connection, self._database, unused))
        self._outside.empty_list()
        return freed, last

    def delete_orphans(self) -> int:
        return self._outside.delete_orphans()

    # Attribute stores

    def find_marks(self, store: str, flow_ids: Iterable[str]) -> list[StoredMark]:
        wanted = list(flow_ids)
        return self._database.read(
            lambda connection: marks.find(connection, self._database, store, wanted), single=True
        )

    def list_marks(self, store: str, after_flow_id: str, limit: int) -> list[tuple[str, float]]:
        return self._database.read(
            lambda connection: marks.page(connection, store, after_flow_id, max(0, limit)), single=True
        )

    def clear_marks(self, cleared: Sequence[StoredMark]) -> None:
        if cleared:
            self._database.write(lambda connection: marks.clear(connection, cleared))

    # Blobs

    def put_blobs(self, run_id: str, blobs: Mapping[str, bytes]) -> None:
        if blobs:
            stored = [(run_id, digest, body) for digest, body in blobs.items()]
            staged = self._outside.stage(blobs)
            self._database.write(lambda connection: self._appender.put_blobs(connection, stored, staged))

    def get_blobs(self, hashes: Iterable[str]) -> dict[str, bytes]:
        place = blob_places.c
        statement = select(blobs.c.hash, blobs.c.body, place.store, place.name).where(
            self._database.among(blobs.c.hash)
        )
        statement = statement.outerjoin_from(blobs, blob_places, place.hash == blobs.c.hash)
        ids = self._database.ids(hashes)
        found = self._database.read(lambda connection: connection.execute(statement, {"ids": ids}).all(), single=True)
        here = {digest: body for digest, body, store, _ in found if store is None}
        places = {digest: (store, name) for digest, _, store, name in found if store is not None}
        return here | self._outside.get(places) if places else here

    def about_blobs(self, hashes: Iterable[str]) -> str:
        return self._outside.about(hashes)

    # Deployments

    def put_deployment(self, deployment: StoredDeployment, flow_types: Sequence[str]) -> None:
        row = {name: getattr(deployment, name) for name in StoredDeployment.__slots__}
        newest = [{"flow_type": name, "deployment_id": deployment.deployment_id} for name in flow_types]

        def work(connection: Connection) -> None:
            connection.execute(self._database.insert_if_new(deployments), row)
            if newest:
                connection.execute(self._database.upsert(flow_deployments), newest)

        self._database.write(work)

    def newest_deployments(self) -> dict[str, str]:
        newest = select(flow_deployments.c.flow_type, flow_deployments.c.deployment_id)
        return self._database.read(lambda connection: _pairs(connection.execute(newest)), single=True)

    def get_deployment(self, deployment_id: str) -> StoredDeployment | None:
        columns = [deployments.c[name] for name in StoredDeployment.__slots__]
        statement = select(*columns).where(deployments.c.deployment_id == deployment_id)
        row = self._database.read(lambda connection: connection.execute(statement).one_or_none(), single=True)
        return None if row is None else StoredDeployment(*row)

    # Leases

    def acquire_lease(self, name: str, holder: str, expires_at: float, now: float, take_from: str = "") -> Lease:
        wanted = Lease(name, holder, expires_at)
        values: dict[str, Any] = {"name": name, "holder": holder, "expires_at": expires_at}

        def work(connection: Connection) -> Lease:
            held = connection.execute(
                select(leases.c.name, leases.c.holder, leases.c.expires_at)
                .where(leases.c.name == name)
                .with_for_update()
            ).one_or_none()
            if held is None:
                connection.execute(insert(leases), values)
                return wanted
            if held.expires_at > now and held.holder != holder and (not take_from or held.holder != take_from):
                return Lease(*held)
            connection.execute(self._database.upsert(leases), values)
            return wanted

        return self._database.write(work)

    def find_lease(self, name: str) -> Lease | None:
        wanted = select(leases.c.name, leases.c.holder, leases.c.expires_at).where(leases.c.name == name)
        row = self._database.read(lambda connection: connection.execute(wanted).one_or_none(), single=True)
        return None if row is None else Lease(*row)

    def release_lease(self, name: str, holder: str) -> None:
        statement = delete(leases).where(leases.c.name == name, leases.c.holder == holder)
        self._database.write(lambda connection: connection.execute(statement) and None)

    # Streams

    def append_messages(self, batch: Sequence[NewMessage]) -> None:
        if batch:
            self._database.write(lambda connection: streams.append(connection, self._database, batch))

    def read_messages(
        self, flow_id: str, stream: str, after_seq: int, limit: int, max_bytes: int = 1 << 20
    ) -> list[StoredMessage]:
        return self._database.read(
            lambda connection: streams.read(connection, flow_id, stream, after_seq, limit, max_bytes)
        )

    def list_messages(self, flow_id: str, stream: str, before_seq: int, limit: int) -> list[StoredMessage]:
        return self._database.read(
            lambda connection: list(streams.page_before(connection, flow_id, stream, before_seq, limit)), single=True
        )

    def close(self) -> None:
        self._database.close()

    def _run(self, which: ColumnElement[bool]) -> RunRow | None:
        row = self._database.read(
            lambda connection: connection.execute(select(*rows.RUN_COLUMNS).where(which)).one_or_none(), single=True
        )
        return None if row is None else rows.run_row(row)

    def _runs(self, statement: Any) -> list[RunRow]:
        return self._database.read(
            lambda connection: [rows.run_row(row) for row in connection.execute(statement)], single=True
        )


def _pairs(rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    return {row[0]: row[1] for row in rows}


def _records(connection: Connection, run_id: str, after_seq: int, limit: int | None) -> list[Record]:
    page = select(*rows.RECORD_COLUMNS).where(events.c.run_id == run_id, events.c.seq > after_seq)
    page = page.order_by(events.c.seq)
    if limit is not None:
        page = page.limit(limit)
    return [rows.record(row) for row in connection.execute(page)]
