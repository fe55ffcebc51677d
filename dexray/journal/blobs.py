"""Large values in a store beside the database (`blob_store`): which object holds which value, and who needs it.

A store can't be asked "is anybody about to refer to this?", so the database decides, and the store only keeps:

    write     an object is put under a new name that ends in chance; then the record that needs it is appended, and in
              the same transaction a row that says "this value lies in that object". There may be one already: then it
              stays, and ours is an orphan. A value that the database knows is not put again; the append looks whether
              it is still known, and if not, begins again and puts it.
    free      a value that no run refers to loses its row; its object goes on a list, in the same transaction. Nobody
              can find the object any more, and nobody will put anything under its name: it is deleted at leisure.
    orphans   of writers that crashed, or came second: objects that are old, and in no row and on no list. An append
              does not refer to an object that was put long ago, but puts it again.

So the invariant "what a retained run refers to is there" needs no clock, except for orphans, where a writer's hour
stands against a day.

The objects of a database lie under a name of its own: another database may have the same store.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from dexray.journal import schema
from dexray.journal.blob_store import BlobStore, open_blob_store
from dexray.journal.database import Database
from dexray.journal.interface import JournalRefused, JournalUnavailable

logger = logging.getLogger("dexray.journal.blobs")

STAGED_SECONDS = 3600.0
ORPHAN_SECONDS = 24 * 3600.0
DELETED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Staged:
    """What an append may refer to: `names` are objects that were put for it, `known` values that were there before."""

    store: str
    names: Mapping[str, str]
    known: frozenset[str]
    clock: Callable[[], float]
    began_at: float

    def check_age(self) -> None:
        """Asked inside of the transaction: from there on, whoever looks for orphans waits for its end."""
        if self.clock() - self.began_at > STAGED_SECONDS:
            raise NotStaged


class NotStaged(Exception):
    """Values that an append was to refer to may not be there any more."""


class OutsideBlobs:
    """The values of one journal that lie outside of its database. Used by one thread at a time."""

    def __init__(self, database: Database, store: BlobStore | None, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._prefix = ""
        self._others: dict[str, BlobStore] = {}  # stores of former settings, which are read only
        self._trouble: dict[str, str] = {}

    # Writing ----------------------------------------------------------------------------------------------------------

    def stage(self, bodies: Mapping[str, bytes]) -> Staged | None:
        """Puts what the database does not know. None when values lie in the database itself."""
        if self._store is None:
            return None
        began_at = self._clock()
        known = self._known(bodies)
        names: dict[str, str] = {}
        for digest, body in bodies.items():
            if digest not in known:
                names[digest] = self._put(self._store, digest, body)
        return Staged(self._store.label, names, frozenset(known), self._clock, began_at)

    def _known(self, hashes: Iterable[str]) -> set[str]:
        wanted = select(schema.blobs.c.hash).where(self._database.among(schema.blobs.c.hash))
        ids = self._database.ids(hashes)
        return self._database.read(
            lambda connection: set(connection.execute(wanted, {"ids": ids}).scalars()), single=True
        )

    def _put(self, store: BlobStore, digest: str, body: bytes) -> str:
        name = f"{self._own_prefix(store)}/{digest[:2]}/{digest}-{secrets.token_hex(6)}"
        with _away(store, f"blob {digest} can't be written"):
            store.put(name, body)
        return name

    def _own_prefix(self, store: BlobStore) -> str:
        if not self._prefix:
            row = {"store": store.label, "prefix": f"dexray-{secrets.token_hex(8)}"}
            mine = select(schema.blob_stores.c.prefix).where(schema.blob_stores.c.store == store.label)

            def work(connection: Connection) -> str:
                connection.execute(self._database.insert_if_new(schema.blob_stores), row)
                return str(connection.execute(mine).scalar_one())

            self._prefix = self._database.write(work)
        return self._prefix

    # Reading ----------------------------------------------------------------------------------------------------------

    def get(self, places: Mapping[str, tuple[str, str]]) -> dict[str, bytes]:
        """Values by hash, from (store, name). One that is missing or damaged is left out; `about` says why."""
        found: dict[str, bytes] = {}
        for digest, (label, name) in places.items():
            try:
                store = self._at(label)
                with _away(store, f"blob {digest} can't be read"):
                    body = store.get(name)
            except (FileNotFoundError, JournalRefused) as error:
                missing = isinstance(error, FileNotFoundError)
                self._trouble[digest] = f"its object {name} is missing in the store {label}" if missing else str(error)
                continue
            if hashlib.sha256(body).hexdigest() != digest:
                self._trouble[digest] = f"its object {name} in the store {label} is damaged ({len(body)} bytes)"
                continue
            found[digest] = body
        return found

    def about(self, hashes: Iterable[str]) -> str:
        """Why values could not be read, in words."""
        return "; ".join(
            f"{digest}: {self._trouble.get(digest, 'it is neither in the database nor in a store')}"
            for digest in sorted(hashes)
        )

    def _at(self, label: str) -> BlobStore:
        if self._store is not None and self._store.label == label:
            return self._store
        if label not in self._others:
            self._others[label] = open_blob_store(label)
        return self._others[label]

    # Deleting ---------------------------------------------------------------------------------------------------------

    def empty_list(self) -> int:
        """Deletes objects that were freed; how many. Those in stores that are away stay on the list."""
        trash = schema.blob_trash.c
        some = select(trash.name, trash.store).limit(DELETED_AT_ONCE)
        listed = self._database.read(lambda connection: connection.execute(some).all(), single=True)
        gone = []
        for name, label in listed:
            try:
                self._at(label).delete(name)
                gone.append(name)
            except (OSError, JournalRefused) as error:
                logger.warning("the object %s in the store %s is deleted later: %s", name, label, error)
        if gone:
            statement = delete(schema.blob_trash).where(self._database.among(trash.name))
            ids = self._database.ids(gone)
            self._database.write(lambda connection: connection.execute(statement, {"ids": ids}) and None)
        return len(gone)

    def delete_orphans(self) -> int:
        """Deletes old objects that nothing refers to; how many."""
        store = self._store
        if store is None:
            return 0
        deleted = 0
        with _away(store, "it can't be looked through"):
            old = list(store.names(self._own_prefix(store), self._clock() - ORPHAN_SECONDS))
        for start in range(0, len(old), DELETED_AT_ONCE):
            page = old[start : start + DELETED_AT_ONCE]
            # As a write, and alone: appends that are under way have ended, and are seen.
            used = self._database.write(lambda connection, page=page: self._used(connection, page))  # type: ignore[misc]
            for name in set(page) - used:
                with _away(store, f"{name} can't be deleted"):
                    store.delete(name)
                deleted += 1
        return deleted

    def _used(self, connection: Connection, names: list[str]) -> set[str]:
        self._database.hold(connection, "blobs", shared=False)
        ids = {"ids": self._database.ids(names)}
        columns = (schema.blob_places.c.name, schema.blob_trash.c.name)
        found = [connection.execute(select(column).where(self._database.among(column)), ids) for column in columns]
        return {name for rows in found for name in rows.scalars()}


def free_places(connection: Connection, database: Database, hashes: list[str]) -> None:
    """The objects of freed values go on the list of those to be deleted."""
    place = schema.blob_places.c
    ids = {"ids": database.ids(hashes)}
    theirs = select(place.name, place.store).where(database.among(place.hash))
    connection.execute(insert(schema.blob_trash).from_select(["name", "store"], theirs), ids)
    connection.execute(delete(schema.blob_places).where(database.among(place.hash)), ids)


class _away:
    """Inside, an OSError means that the store is away; a missing file is told as it is."""

    def __init__(self, store: BlobStore, what: str) -> None:
        self._store = store
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise JournalUnavailable(f"the blob store {self._store.label}: {self._what}: {error}") from error
