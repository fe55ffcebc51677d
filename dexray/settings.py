"""Settings: where each comes from, and what it means.

The first of these that names a setting wins: an argument of `connect`, a `DEXRAY_*` environment variable,
`[tool.dexray]` in the nearest `pyproject.toml` at or above the working folder, the default. `dexray config` prints each
with its source. A relative path in a `pyproject.toml` starts from its folder; elsewhere, from the working folder.

    >>> settings, _ = resolve({"flow_actors": 2}, environ={"DEXRAY_LEASE_SECONDS": "5"}, folder=Path("/"))
    >>> settings.flow_actors, settings.lease_seconds, settings.namespace
    (2, 5.0, 'dexray')
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import tomllib
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any


class SettingsError(ValueError):
    """A setting that is unknown, or whose value can't be used. Names the setting, the value and where it came from."""


def _number(low: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool):
            raise ValueError("a number is wanted")
        number = float(value)
        if not low <= number < float("inf"):
            raise ValueError(f"from {low:g} up")
        return number

    return parse


def _count(low: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError("a whole number is wanted")
        number = int(value)
        if number < low:
            raise ValueError(f"from {low} up")
        return number

    return parse


def _text(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise ValueError("a text is wanted")
    return value


def _name(value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", _text(value)):
        raise ValueError("1 to 64 letters, digits, '_', '.' or '-'")
    return _text(value)


@dataclass(frozen=True, slots=True)
class AttributeStore:
    """A user's own table, which gets the latest values of Attributes with `sync_to_attribute_store`.

    url: of a SQLite file or a PostgreSQL database, as SQLAlchemy takes it. table: its name, in PostgreSQL also
    `schema.table`. Its passwords are not shown.
    """

    name: str
    url: str
    table: str

    def __repr__(self) -> str:
        return f"AttributeStore(name={self.name!r}, url={masked(self.url)!r}, table={self.table!r})"


STORE_KINDS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgres", "postgresql+psycopg")


def _stores(value: Any) -> tuple[AttributeStore, ...]:
    """Of {"name": {"url": "...", "table": "..."}}, as a mapping or as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f'JSON is wanted, like {{"main": {{"url": "...", "table": "..."}}}}: {error}') from error
    if isinstance(value, tuple | list) and all(isinstance(store, AttributeStore) for store in value):
        value = {store.name: {"url": store.url, "table": store.table} for store in value}
    if not isinstance(value, Mapping):
        raise ValueError('a table of stores is wanted, like {"main": {"url": "...", "table": "..."}}')
    stores = tuple(_store(name, fields) for name, fields in value.items())
    places: dict[tuple[str, str], str] = {}
    for store in stores:
        other = places.setdefault((canonical_database(store.url), store.table), store.name)
        if other != store.name:
            raise ValueError(f"the stores {other!r} and {store.name!r} are one table: one name for it is enough")
    return stores


def _store(name: Any, fields: Any) -> AttributeStore:
    try:
        name = _name(name)
        if not isinstance(fields, Mapping) or set(fields) != {"url", "table"}:
            raise ValueError("its url and its table are wanted, and nothing else")
        url, table = _text(fields["url"]), _text(fields["table"])
        kind, separator, place = url.partition("://")
        if not separator or kind not in STORE_KINDS:
            raise ValueError(f"its url begins with sqlite:/// or postgresql://, not with {kind!r}")
        if kind.startswith("sqlite") and (not place.startswith("/") or place in ("/", "/:memory:") or "?" in place):
            raise ValueError("its url names a file, like sqlite:///relative/path or sqlite:////absolute/path")
        if not table:
            raise ValueError("its table has a name")
    except ValueError as error:
        raise ValueError(f"store {name!r}: {error}") from error
    return AttributeStore(name, url, table)


def _names(value: Any) -> tuple[str, ...]:
    """Of a list, or of a text with commas."""
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    if not isinstance(value, list | tuple):
        raise ValueError("a list of names is wanted")
    return tuple(dict.fromkeys(_name(name) for name in value))


def _spec(default: Any, parse: Callable[[Any], Any], doc: str) -> Any:
    return field(default=default, metadata={"parse": parse, "doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of an engine and its clients. Durations are seconds, except `retention`."""

    home: str = _spec("~/.dexray", _text, "folder for the default database")
    database: str = _spec("", _text, "database URL or path; empty: SQLite under home")
    blob_store: str = _spec("", _text, "folder or fsspec URL for large values; empty: in the database")
    address: str = _spec(
        "",
        _text,
        'address of a Ray cluster, or "local" for an embedded one; empty: the running one, else an embedded one',
    )
    namespace: str = _spec("dexray", _name, "Ray namespace of the engine's actors")
    num_cpus: int = _spec(0, _count(0), "CPUs of an embedded Ray; 0: those of this machine")
    flow_actors: int = _spec(1, _count(1), "FlowActors to begin with")
    max_flow_actors: int = _spec(0, _count(0), "most FlowActors; 0: one for each CPU of the cluster, 2 to 16")
    engine_resource: str = _spec(
        "", _text, "Ray resource of the nodes that the engine's actors may be on; empty: any node"
    )
    flows_per_actor: int = _spec(0, _count(0), "most active Flows in one FlowActor; 0: no bound")
    request_timeout: float = _spec(30.0, _number(0.1), "how long a client repeats a call while the engine is away")
    lease_seconds: float = _spec(10.0, _number(1.0), "how long a silent engine keeps its database to itself")
    frozen_seconds: float = _spec(60.0, _number(3.0), "how long a FlowActor may be silent before it is started again")
    drain_seconds: float = _spec(5.0, _number(0.0), "how long an orderly end waits for attempts that run")
    worker_output: bool = _spec(
        True, lambda value: _flag(value), "with an embedded Ray: show here what handlers print and log, on workers"
    )
    hold: bool = _spec(False, lambda value: _flag(value), "an embedded engine answers, and starts no attempts")
    idle_flows: int = _spec(2000, _count(1), "Flows that only wait which a FlowActor keeps in memory")
    retention: float = _spec(
        0.0, lambda value: _days(value), 'days for which closed runs are kept, or "12h"; 0: for good'
    )
    max_value_bytes: int = _spec(64 * 1024 * 1024, _count(1024), "largest encoded value")
    code_check: bool = _spec(True, lambda value: _flag(value), "load the code on a worker when it is deployed")
    attribute_stores: tuple[AttributeStore, ...] = _spec(
        (), _stores, 'tables that Attributes are synced to: {"name": {"url": "...", "table": "..."}}'
    )
    default_attribute_stores: tuple[str, ...] = _spec(
        (), _names, "stores of Flows whose FlowConfig has no attribute_store_names"
    )

    def __repr__(self) -> str:
        given = ((entry.name, getattr(self, entry.name), entry.default) for entry in dataclasses.fields(self))
        return f"Settings({', '.join(f'{name}={masked(repr(value))}' for name, value, it in given if value != it)})"

    @property
    def database_url(self) -> str:
        """Where the database is, so written that it means the same in every process and for every way to say it."""
        return canonical_database(self.database or os.path.join(self.home, "dexray.db"))

    @property
    def blob_store_url(self) -> str:
        """The blob store, a folder as its absolute path; "" for the database."""
        store = self.blob_store
        return store if not store or "://" in store else os.path.realpath(os.path.expanduser(store))


def canonical_database(database: str) -> str:
    """A file as its absolute path without links, whether it was given as a path or as a sqlite URL; another URL as it
    is.

        >>> canonical_database("sqlite:////var/../var/flows.db")
        '/var/flows.db'
    """
    kind, separator, path = database.partition("://")
    if not separator:
        path = database
    elif kind not in ("sqlite", "sqlite+pysqlite") or not path.startswith("/") or len(path) < 2 or "?" in path:
        return database
    else:
        path = urllib.parse.unquote(path[1:])
    if path == ":memory:":
        return database
    return os.path.realpath(os.path.expanduser(path))


_UNITS = {"d": 1.0, "h": 1 / 24, "m": 1 / 1440, "s": 1 / 86400}


def _days(value: Any) -> float:
    """Days: a timedelta, a number, or a text such as "30", "30d", "12h", "90m", "45s"."""
    if isinstance(value, timedelta):
        value = value / timedelta(days=1)
    unit = 1.0
    if isinstance(value, str):
        unit = _UNITS.get(value.strip()[-1:].lower(), 1.0)
        value = value.strip().rstrip("dhmsDHMS")
    try:
        return _number(0.0)(value) * unit
    except ValueError as error:
        raise ValueError(f'{error}: a timedelta, days as a number, or a text like "30d", "12h", "90m"') from None


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError("true or false is wanted")


@dataclass(frozen=True, slots=True)
class Sourced:
    """One setting with its value and where that came from."""

    name: str
    value: Any
    source: str
    doc: str

    def __repr__(self) -> str:
        return f"Sourced({self.name}={masked(repr(self.value))}, from {self.source})"


def resolve(
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> tuple[Settings, list[Sourced]]:
    """The settings in force, and each with its source. Arguments that are None count as not given, and so do variables
    that are empty. Raises SettingsError, which names the setting and its source.
    """
    environ = os.environ if environ is None else environ
    fields = {entry.name: entry for entry in dataclasses.fields(Settings)}
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    path, table = _project_table(folder if folder is not None else Path.cwd())
    in_file = f"[tool.dexray] in {path}"
    for name, where in [*((name, "argument") for name in given), *((name, in_file) for name in table)]:
        if name not in fields:
            raise SettingsError(f"{where}: there is no setting {name!r}{_instead(name, fields)}")
    values: dict[str, Any] = {}
    sourced: list[Sourced] = []
    for name, entry in fields.items():
        variable = f"DEXRAY_{name.upper()}"
        if name in given:
            value, source = given[name], "argument"
        elif environ.get(variable):
            value, source = environ[variable], variable
        elif name in table:
            value, source = table[name], in_file
        else:
            value, source = entry.default, "default"
        try:
            values[name] = entry.metadata["parse"](value)
        except (ValueError, TypeError, OverflowError) as error:
            raise SettingsError(f"setting {name} = {masked(repr(value))} ({source}): {masked(error)}") from error
        if source == in_file and path is not None and name in ("home", "database", "blob_store"):
            values[name] = _from_folder(path.parent, values[name])
        if name == "attribute_stores":
            near = path.parent if source == in_file and path is not None else Path.cwd()
            values[name] = tuple(_with_absolute_file(store, near) for store in values[name])
        sourced.append(Sourced(name, values[name], source, entry.metadata["doc"]))
    settings = Settings(**values)
    _check_stores(settings)
    return settings, sourced


def _check_stores(settings: Settings) -> None:
    known = [store.name for store in settings.attribute_stores]
    for name in settings.default_attribute_stores:
        if name not in known:
            raise SettingsError(f"setting default_attribute_stores: {unknown_store(name, known)}")
    if not known:
        return
    journal = settings.database_url
    for store in settings.attribute_stores:
        if store.url == f"sqlite:///{journal}":
            raise SettingsError(
                f"setting attribute_stores: store {store.name!r} is in the file of dexray's own database ({journal}), "
                "where each of them would have to wait for the other: put its table into another file"
            )


def unknown_store(name: str, known: Iterable[str]) -> str:
    """What there is to say of a store that nobody has set up."""
    names = ", ".join(sorted(known))
    return f"there is no Attribute store {name!r}; " + (
        f"the stores are {names}" if names else "there are none: name them in the setting attribute_stores"
    )


def shown(value: Any) -> Any:
    """A setting's value as JSON data for the eyes of people, without passwords."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, tuple):
        if value and isinstance(value[0], AttributeStore):
            return {store.name: {"url": masked(store.url), "table": store.table} for store in value}
        return list(value)
    return value


def _instead(name: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; the settings are {', '.join(fields)}"


def _from_folder(folder: Path, value: str) -> str:
    """A relative path in a pyproject.toml, seen from there."""
    if not value or "://" in value or value.startswith("~"):
        return value
    return str(folder / value)


def _with_absolute_file(store: AttributeStore, folder: Path) -> AttributeStore:
    """The engine's processes have working folders of their own."""
    kind, _, place = store.url.partition("://")
    if not kind.startswith("sqlite"):
        return store
    return dataclasses.replace(store, url=f"sqlite:///{os.path.realpath(folder / os.path.expanduser(place[1:]))}")


def _project_table(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        try:
            content = path.read_bytes()
        except OSError:
            continue
        try:
            table: Any = tomllib.loads(content.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} can't be read: {error}") from error
        for key in ("tool", "dexray"):
            table = table.get(key, {})
            if not isinstance(table, dict):
                raise SettingsError(f"[tool.dexray] in {path}: a table is wanted, not {key} = {masked(repr(table))}")
        return path, table
    return None, {}


_USER_INFO = re.compile(r"(?<=://)([^:/?#@\s]*):\S*@")  # to the last "@": a password may hold one
_KEY_AND_VALUE = re.compile(r"([\w.%-]+)=([^&;#\s'\"]+)")
_SECRET = re.compile(r"pass|pwd|secret|token|credential|api.?key|private.?key|access.?key", re.IGNORECASE)


def masked(value: Any) -> str:
    """A setting for the eyes of people: passwords of URLs, in the user part or in a parameter, are not shown.

    >>> masked("postgresql://ann:p%40ss@db/flows?sslpassword=x&sslmode=require")
    'postgresql://ann:***@db/flows?sslpassword=***&sslmode=require'
    """

    def parameter(found: re.Match[str]) -> str:
        return f"{found[1]}=***" if _SECRET.search(urllib.parse.unquote(found[1])) else found[0]

    return _KEY_AND_VALUE.sub(parameter, _USER_INFO.sub(r"\1:***@", str(value)))
