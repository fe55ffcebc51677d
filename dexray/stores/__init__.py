"""Attribute stores: users' own tables, which get the latest values of Attributes that asked for it.

A row is a Flow ID, a column bears the name of an Attribute. `StoreTable` writes such rows, and knows nothing of Flows;
who decides what is written and when is `dexray.engine.stores`.

- `table`: the table as its database describes it, and the writing of rows.
- `databases`: how SQLite and PostgreSQL are opened and locked, and what their errors mean.
- `values`: a value of an Attribute in the form that a column takes.

Rules
- The table is the user's. It is never made or changed here, and of its rows only the columns of Attributes are written.
- **A row is locked before its news are read in the journal, and until it is written.** So rows are written in the order
  in which their news were read, by whoever does it: a sender that was overtaken waits for the lock, and then reads what
  is the latest. No column of the user's is needed for that. SQLite locks its file, PostgreSQL the Flow ID.
- Two kinds of trouble. `StoreAway`: nothing can be written now (no server, no table, no permission). `RowsRefused`: the
  store works, and does not take one of these rows. What does not fit a column is neither: it is left out, and logged.
"""

from __future__ import annotations

from dexray.stores.databases import RowsRefused, StoreAway
from dexray.stores.table import Image, StoreTable

__all__ = ["Image", "RowsRefused", "StoreAway", "StoreTable"]
