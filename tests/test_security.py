"""What the documentation promises about trust: see "Security" in docs/operations.md. Most of it is read from the
source, so that a line which breaks the promise has to come here first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dexray.cluster.protocol import EngineConfig
from dexray.settings import resolve

ROOT = Path(__file__).parents[1]
SECRET = "hunter2"
URL = f"postgresql://ada:{SECRET}@db/flows?sslpassword={SECRET}"


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


# Code from bytes ------------------------------------------------------------------------------------------------------

UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
BECOMES_CODE = {"loads", "Unpickler", "unsafe_load", "full_load", "read_pickle"}


def code_from_bytes(module: ast.Module) -> Iterator[str]:
    """Imports of what unpickles, and calls that could make code or objects of bytes that came from somewhere."""
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names):
                yield from (f"import {name.name}" for name in names if name.name.split(".")[0] in UNPICKLERS)
            case ast.ImportFrom(module=str(name)) if name.split(".")[0] in UNPICKLERS or name == "ray.cloudpickle":
                yield f"import {name}"
            case ast.Call(func=ast.Name(id=name)) if name in RUNS_TEXT:
                yield name
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id=of))) if name in BECOMES_CODE and (
                of not in ("json", "tomllib")
            ):
                yield f"{of}.{name}"
            case ast.Call(func=ast.Attribute(attr="load", value=ast.Name(id=of))) if of.lower() in (
                *UNPICKLERS,
                "unpickler",
            ):
                yield f"{of}.load"
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Attribute(attr="cloudpickle"))):
                yield f"cloudpickle.{name}"
            case _:
                pass


UNPICKLES = {
    # A deployment: put into the database by whoever called `connect(registry)`, loaded by workers.
    "dexray/attempts/code.py": {"import pickle", "import cloudpickle", "pickle.Unpickler", "unpickler.load"},
    # PickleBuffer alone: how bytes are handed to Ray's object store without a copy. It loads nothing.
    "dexray/cluster/shared_values.py": {"import pickle"},
}


def test_pickles_are_loaded_in_one_place_and_those_are_deployments() -> None:
    found = {path: set(code_from_bytes(module)) for path, module in sources("sdk/dex", "dexray")}
    assert {path: what for path, what in found.items() if what} == UNPICKLES


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from cloudpickle import loads",
        "from ray.cloudpickle import loads",
        "ray.cloudpickle.loads(data)",
        "yaml.unsafe_load(text)",
        "pandas.read_pickle(path)",
        "eval(text)",
    ],
)
def test_the_search_for_them_sees(line: str) -> None:
    assert list(code_from_bytes(ast.parse(line)))


def test_what_clients_and_workers_send_is_never_unpickled_by_the_engine() -> None:
    """The engine, the journal and the protocol do not even know where deployments are loaded."""
    for path, module in sources(
        "dexray/engine", "dexray/journal", "dexray/protocol", "dexray/machine", "dexray/search"
    ):
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                assert not node.module.startswith("dexray.attempts.code"), path


# SQL ------------------------------------------------------------------------------------------------------------------

VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "ALTER", "CREATE", "DROP", "BEGIN", "SET ", "WITH ", "PRAGMA", "COPY")


def built_sql(module: ast.Module) -> Iterator[str]:
    """What is put into the text of SQL, other than as a parameter: by f-strings, `%`, `+` and `format`."""
    for node in ast.walk(module):
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_] as parts) if text.startswith(VERBS):
                yield from (ast.unparse(part.value) for part in parts if isinstance(part, ast.FormattedValue))
            case ast.BinOp(left=ast.Constant(value=str(text)), right=right) if text.startswith(VERBS):
                yield ast.unparse(right)
            case ast.Call(func=ast.Attribute(attr="format", value=ast.Constant(value=str(text)))) if text.startswith(
                VERBS
            ):
                yield from (ast.unparse(argument) for argument in node.args)
            case _:
                pass


BUILT = {
    # Keys of advisory locks, which are numbers, and the name of the function that takes or lets go of one.
    "dexray/journal/postgres.py": {
        *("self._lock", "MIGRATION_LOCK", "MIGRATION_LOCK >> 32", "lock - (1 << 31)", "kind"),
    },
    # ' COLLATE "C"' or nothing, by the kind of database.
    "dexray/journal/schema.py": {"collation"},
}


def test_sql_is_made_of_parameters_and_the_few_exceptions_are_numbers_and_names_of_our_own() -> None:
    found = {path: set(built_sql(module)) for path, module in sources("dexray")}
    assert {path: what for path, what in found.items() if what} == BUILT


@pytest.mark.parametrize("line", ['text(f"SELECT {x}")', 'run("DELETE FROM t WHERE a = " + x)', '"SELECT %s" % x'])
def test_the_search_for_built_sql_sees(line: str) -> None:
    assert list(built_sql(ast.parse(line))) == ["x"]


# Secrets --------------------------------------------------------------------------------------------------------------


def config(url: str) -> EngineConfig:
    fields: dict[str, Any] = {"flow_actors": 1, "max_flow_actors": 1, "flows_per_actor": 0, "lease_seconds": 1.0}
    return EngineConfig(database_url=url, namespace="n", idle_flows=1, cluster_id="c", **fields)


def test_settings_and_what_an_engine_is_made_with_do_not_show_passwords_when_they_are_logged() -> None:
    settings, sourced = resolve({"database": URL}, environ={}, folder=Path("/"))
    shown = [repr(settings), repr(sourced), repr(config(URL)), str({"config": config(URL)})]
    assert settings.database_url == URL
    for text in shown:
        assert SECRET not in text
        assert "ada:***@db/flows" in text
