"""Settings: which source wins, what is refused and how, and what is never shown."""

from __future__ import annotations

import json
import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

from dexray.settings import AttributeStore, Settings, SettingsError, canonical_database, masked, resolve, shown


def project(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def source_of(name: str, arguments: dict[str, object], environ: dict[str, str], folder: Path) -> tuple[object, str]:
    _, sourced = resolve(arguments, environ=environ, folder=folder)
    (found,) = [setting for setting in sourced if setting.name == name]
    return found.value, found.source


class TestSources:
    def test_an_argument_wins_over_a_variable_over_the_file_over_the_default(self, tmp_path: Path) -> None:
        variable = {"DEXRAY_FLOW_ACTORS": "3"}
        assert source_of("flow_actors", {}, {}, tmp_path) == (1, "default")
        path = project(tmp_path, "[tool.dexray]\nflow_actors = 2\n")
        assert source_of("flow_actors", {}, {}, tmp_path) == (2, f"[tool.dexray] in {path}")
        assert source_of("flow_actors", {}, variable, tmp_path) == (3, "DEXRAY_FLOW_ACTORS")
        assert source_of("flow_actors", {"flow_actors": 4}, variable, tmp_path) == (4, "argument")

    def test_every_setting_has_a_source_and_a_meaning(self, tmp_path: Path) -> None:
        settings, sourced = resolve({}, environ={}, folder=tmp_path)
        assert settings == Settings()
        assert [entry.name for entry in sourced] == list(Settings.__slots__)
        assert all(entry.source == "default" and entry.doc for entry in sourced)

    def test_an_argument_that_is_none_is_not_given(self, tmp_path: Path) -> None:
        assert source_of("address", {"address": None}, {"DEXRAY_ADDRESS": "local"}, tmp_path)[0] == "local"

    def test_an_argument_that_is_empty_is_given(self, tmp_path: Path) -> None:
        assert source_of("address", {"address": ""}, {"DEXRAY_ADDRESS": "local"}, tmp_path) == ("", "argument")

    def test_a_variable_that_is_empty_is_not_given(self, tmp_path: Path) -> None:
        path = project(tmp_path, "[tool.dexray]\nnamespace = 'mine'\n")
        found = source_of("namespace", {}, {"DEXRAY_NAMESPACE": ""}, tmp_path)
        assert found == ("mine", f"[tool.dexray] in {path}")

    def test_the_nearest_pyproject_upward_counts(self, tmp_path: Path) -> None:
        inner = tmp_path / "a" / "b"
        inner.mkdir(parents=True)
        path = project(tmp_path, "[tool.dexray]\nflow_actors = 2\n")
        assert source_of("flow_actors", {}, {}, inner) == (2, f"[tool.dexray] in {path}")
        project(tmp_path / "a", "[project]\nname = 'another'\n")
        assert source_of("flow_actors", {}, {}, inner) == (1, "default")

    def test_the_working_folder_and_the_environment_are_looked_at_by_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project(tmp_path, "[tool.dexray]\nflow_actors = 2\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DEXRAY_IDLE_FLOWS", "7")
        settings, _ = resolve()
        assert (settings.flow_actors, settings.idle_flows) == (2, 7)

    @pytest.mark.parametrize(
        ("given", "days"),
        [
            (30, 30.0),
            ("30", 30.0),
            ("0.5d", 0.5),
            ("12h", 0.5),
            ("90M", 0.0625),
            ("86400s", 1.0),
            (timedelta(hours=6), 0.25),
        ],
    )
    def test_retention_is_said_in_days_or_with_a_unit(self, tmp_path: Path, given: object, days: float) -> None:
        settings, _ = resolve({"retention": given}, environ={}, folder=tmp_path)
        assert settings.retention == pytest.approx(days)

    @pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("off", False), ("FALSE", False)])
    def test_a_variable_says_yes_or_no_in_words(self, tmp_path: Path, text: str, value: bool) -> None:
        assert source_of("code_check", {}, {"DEXRAY_CODE_CHECK": text}, tmp_path)[0] is value


class TestDatabase:
    def test_without_one_it_lies_under_home(self, tmp_path: Path) -> None:
        settings, _ = resolve({}, environ={"DEXRAY_HOME": str(tmp_path / "home")}, folder=tmp_path)
        assert settings.database_url == os.path.realpath(tmp_path / "home" / "dexray.db")
        assert Settings().database_url == os.path.realpath(os.path.expanduser("~/.dexray/dexray.db"))

    def test_a_relative_path_in_the_file_starts_from_its_folder(self, tmp_path: Path) -> None:
        inner = tmp_path / "notebooks"
        inner.mkdir()
        project(tmp_path, "[tool.dexray]\ndatabase = 'data/flows.db'\n")
        settings, _ = resolve({}, environ={}, folder=inner)
        assert settings.database_url == os.path.realpath(tmp_path / "data" / "flows.db")

    @pytest.mark.parametrize(
        ("given", "place"),
        [("values", "{folder}/values"), ("s3://bucket/values", "s3://bucket/values"), ("/abs/v", "/abs/v"), ("", "")],
    )
    def test_the_blob_store_in_the_file_starts_from_its_folder(self, tmp_path: Path, given: str, place: str) -> None:
        project(tmp_path, f"[tool.dexray]\nblob_store = '{given}'\n")
        settings, _ = resolve({}, environ={}, folder=tmp_path)
        assert settings.blob_store_url == place.format(folder=os.path.realpath(tmp_path))

    @pytest.mark.parametrize("database", ["~/flows.db", "postgresql://db/flows", "/abs/flows.db"])
    def test_other_databases_in_the_file_are_taken_as_they_are(self, tmp_path: Path, database: str) -> None:
        project(tmp_path, f"[tool.dexray]\ndatabase = '{database}'\n")
        settings, _ = resolve({}, environ={}, folder=tmp_path)
        assert settings.database_url == canonical_database(database)

    def test_a_path_may_be_a_path_object(self, tmp_path: Path) -> None:
        settings, _ = resolve({"database": tmp_path / "f.db"}, environ={}, folder=tmp_path)
        assert settings.database_url == os.path.realpath(tmp_path / "f.db")

    def test_one_file_has_one_name_however_it_is_given(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "link").symlink_to(tmp_path)
        ways = [
            "flows.db",
            "./x/../flows.db",
            "link/flows.db",
            f"{tmp_path}/flows.db",
            "sqlite:///flows.db",
            f"sqlite:///{tmp_path}/flows.db",
            f"sqlite+pysqlite:///{tmp_path}/link/flows.db",
        ]
        assert {canonical_database(way) for way in ways} == {os.path.realpath(tmp_path / "flows.db")}

    @pytest.mark.parametrize(
        "database", ["postgresql://u@h/db", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///a.db?mode=ro"]
    )
    def test_what_is_no_file_stays_as_it_is(self, database: str) -> None:
        assert canonical_database(database) == database


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "environ", "text", "words"),
        [
            ({"flow_actors": 0}, {}, "", ["flow_actors", "0", "argument", "from 1 up"]),
            ({"flow_actors": 1.5}, {}, "", ["flow_actors", "1.5", "argument", "whole"]),
            ({"flow_actors": True}, {}, "", ["flow_actors", "True", "argument", "whole"]),
            ({"flow_actors": []}, {}, "", ["flow_actors", "[]", "argument"]),
            ({"lease_seconds": "soon"}, {}, "", ["lease_seconds", "'soon'", "argument"]),
            ({"lease_seconds": float("nan")}, {}, "", ["lease_seconds", "nan", "argument", "from 1 up"]),
            ({"lease_seconds": float("inf")}, {}, "", ["lease_seconds", "inf", "argument", "from 1 up"]),
            ({"request_timeout": True}, {}, "", ["request_timeout", "True", "a number"]),
            ({"idle_flows": float("inf")}, {}, "", ["idle_flows", "inf", "whole"]),
            ({"database": 7}, {}, "", ["database", "7", "argument", "a text"]),
            ({"blob_store": 7}, {}, "", ["blob_store", "7", "a text"]),
            ({"retention": "soon"}, {}, "", ["retention", "soon", "12h"]),
            ({"retention": -1}, {}, "", ["retention", "-1", "from 0 up"]),
            ({"namespace": "a/b"}, {}, "", ["namespace", "'a/b'", "argument", "64 letters"]),
            ({"code_check": "maybe"}, {}, "", ["code_check", "'maybe'", "argument", "true or false"]),
            ({}, {"DEXRAY_NUM_CPUS": "-1"}, "", ["num_cpus", "'-1'", "(DEXRAY_NUM_CPUS)", "from 0 up"]),
            ({}, {"DEXRAY_NUM_CPUS": "two"}, "", ["num_cpus", "'two'", "(DEXRAY_NUM_CPUS)"]),
            ({}, {}, "max_value_bytes = 1", ["max_value_bytes", "1", "[tool.dexray] in", "pyproject.toml", "1024"]),
            ({}, {}, "namespace = ''", ["namespace", "''", "[tool.dexray] in", "pyproject.toml"]),
            ({"flow_actor": 1}, {}, "", ["argument", "'flow_actor'", "did you mean 'flow_actors'"]),
            ({"colour": 1}, {}, "", ["argument", "'colour'", "the settings are home, database"]),
            ({}, {}, "lease_second = 1", ["[tool.dexray] in", "'lease_second'", "did you mean 'lease_seconds'"]),
        ],
    )
    def test_an_error_names_the_setting_the_value_and_the_source(
        self, tmp_path: Path, arguments: dict[str, object], environ: dict[str, str], text: str, words: list[str]
    ) -> None:
        project(tmp_path, f"[tool.dexray]\n{text}\n")
        with pytest.raises(SettingsError) as refused:
            resolve(arguments, environ=environ, folder=tmp_path)
        assert all(word in str(refused.value) for word in words), str(refused.value)

    @pytest.mark.parametrize("content", [b"[tool.dexray\n", b"\xff\xfe", b"[tool.dexray]\nnamespace = \n"])
    def test_a_file_that_is_no_toml_is_named(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "pyproject.toml").write_bytes(content)
        with pytest.raises(SettingsError, match=f"{tmp_path}/pyproject.toml can't be read"):
            resolve({}, environ={}, folder=tmp_path)

    @pytest.mark.parametrize("text", ["tool = 3", "[tool]\ndexray = 'fast'"])
    def test_a_table_that_is_none_is_named(self, tmp_path: Path, text: str) -> None:
        project(tmp_path, text)
        with pytest.raises(SettingsError, match=r"pyproject.toml: a table is wanted, not (tool = 3|dexray = 'fast')"):
            resolve({}, environ={}, folder=tmp_path)

    def test_a_folder_named_pyproject_is_passed_over(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        (inner / "pyproject.toml").mkdir(parents=True)
        project(tmp_path, "[tool.dexray]\nflow_actors = 2\n")
        assert source_of("flow_actors", {}, {}, inner)[0] == 2

    def test_an_error_does_not_tell_a_password(self, tmp_path: Path) -> None:
        secret = "postgresql://ann:hunter2@db/flows"
        with pytest.raises(SettingsError) as refused:
            resolve({"namespace": secret}, environ={}, folder=tmp_path)
        assert "hunter2" not in str(refused.value)
        project(tmp_path, f"[tool]\ndexray = '{secret}'\n")
        with pytest.raises(SettingsError) as refused:
            resolve({}, environ={}, folder=tmp_path)
        assert "hunter2" not in str(refused.value)


class TestMasking:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            ("postgresql://ann:hunter2@db:5432/flows", "postgresql://ann:***@db:5432/flows"),
            ("postgresql://ann:hunt%40er%3A2@db/flows", "postgresql://ann:***@db/flows"),
            ("postgresql://ann:hunt@er:2@db/flows", "postgresql://ann:***@db/flows"),
            ("postgresql://ann:hun/ter?2@db/flows", "postgresql://ann:***@db/flows"),
            ("redis://:hunter2@cache", "redis://:***@cache"),
            ("postgresql+psycopg://db/f?user=ann&password=hunter2", "postgresql+psycopg://db/f?user=ann&password=***"),
            ("postgresql://db/f?p%61ssword=hunter2#x", "postgresql://db/f?p%61ssword=***#x"),
            (
                "postgresql://db/f?sslpassword=hunter2&sslmode=require",
                "postgresql://db/f?sslpassword=***&sslmode=require",
            ),
            ("postgresql://db/f?PassWord=hunter2;a=b", "postgresql://db/f?PassWord=***;a=b"),
            ("https://h/?api_key=hunter2&access-key=hunter2", "https://h/?api_key=***&access-key=***"),
            ("host=db password=hunter2 user=ann", "host=db password=*** user=ann"),
            ("could not connect to postgresql://a:hunter2@db", "could not connect to postgresql://a:***@db"),
        ],
    )
    def test_a_password_is_not_shown_wherever_it_stands(self, value: str, shown: str) -> None:
        assert masked(value) == shown

    @pytest.mark.parametrize(
        "value",
        ["/home/ann/f.db", "sqlite:////home/a@b/f.db", "postgresql://ann@db/flows", "a@b:c", "10.0.0.1:6379", ""],
    )
    def test_what_holds_no_password_is_shown_as_it_is(self, value: str) -> None:
        assert masked(value) == value

    def test_anything_may_be_shown(self) -> None:
        assert masked(7) == "7"
        assert masked(ValueError("no postgresql://a:b@c")) == "no postgresql://a:***@c"


class TestAttributeStores:
    def stores(self, given: object, **more: object) -> tuple[AttributeStore, ...]:
        settings, _ = resolve({"attribute_stores": given, **more}, environ={}, folder=Path("/"))
        return settings.attribute_stores

    def test_they_come_from_an_argument_a_variable_or_the_file(self, tmp_path: Path) -> None:
        url = "postgresql://ann:geheim@db/shop"
        given = {"shop": {"url": url, "table": "sales.orders"}}
        wanted = (AttributeStore("shop", url, "sales.orders"),)
        assert self.stores(given) == wanted
        assert self.stores(wanted) == wanted
        variable = {"DEXRAY_ATTRIBUTE_STORES": json.dumps(given), "DEXRAY_DEFAULT_ATTRIBUTE_STORES": "shop, shop"}
        settings, _ = resolve({}, environ=variable, folder=tmp_path)
        assert (settings.attribute_stores, settings.default_attribute_stores) == (wanted, ("shop",))
        project(
            tmp_path,
            "[tool.dexray]\ndefault_attribute_stores = ['shop']\n"
            f"[tool.dexray.attribute_stores]\nshop = {{url = '{url}', table = 'sales.orders'}}\n",
        )
        settings, _ = resolve({}, environ={}, folder=tmp_path)
        assert (settings.attribute_stores, settings.default_attribute_stores) == (wanted, ("shop",))

    def test_a_relative_file_starts_from_where_the_setting_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        project(tmp_path, "[tool.dexray.attribute_stores]\nshop = {url = 'sqlite:///shop.db', table = 'orders'}\n")
        settings, _ = resolve({}, environ={}, folder=inner)
        assert settings.attribute_stores[0].url == f"sqlite:///{tmp_path}/shop.db"
        monkeypatch.chdir(inner)
        assert self.stores({"shop": {"url": "sqlite:///shop.db", "table": "orders"}})[0].url == (
            f"sqlite:///{inner}/shop.db"
        )
        assert self.stores({"shop": {"url": "sqlite:////a/b.db", "table": "orders"}})[0].url == "sqlite:////a/b.db"

    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ("shop", "JSON is wanted"),
            (["shop"], "a table of stores is wanted"),
            ({"shop": "sqlite:///shop.db"}, "store 'shop': its url and its table are wanted"),
            ({"shop": {"url": "sqlite:///shop.db"}}, "store 'shop': its url and its table are wanted"),
            ({"shop": {"url": "mysql://db/shop", "table": "t"}}, "begins with sqlite:/// or postgresql://, not"),
            ({"shop": {"url": "sqlite://", "table": "t"}}, "its url names a file"),
            ({"shop": {"url": "sqlite:///:memory:", "table": "t"}}, "its url names a file"),
            ({"shop": {"url": "sqlite:///x.db", "table": ""}}, "its table has a name"),
            ({"a shop": {"url": "sqlite:///x.db", "table": "t"}}, "store 'a shop': 1 to 64 letters"),
            (
                {"a": {"url": "sqlite:////x.db", "table": "t"}, "b": {"url": "sqlite:////y/../x.db", "table": "t"}},
                "the stores 'a' and 'b' are one table",
            ),
        ],
    )
    def test_what_can_not_be_one_is_refused(self, given: object, what: str) -> None:
        with pytest.raises(SettingsError, match=f"setting attribute_stores.*{re.escape(what)}"):
            self.stores(given)

    def test_the_file_of_the_journal_is_no_store(self, tmp_path: Path) -> None:
        path = tmp_path / "flows.db"
        with pytest.raises(SettingsError, match="store 'shop' is in the file of dexray's own database"):
            self.stores({"shop": {"url": f"sqlite:///{path}", "table": "t"}}, database=str(path))

    def test_a_default_that_is_no_store_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="there is no Attribute store 'main'; there are none: name them in"):
            resolve({"default_attribute_stores": ["main"]}, environ={}, folder=Path("/"))

    def test_passwords_are_never_shown(self) -> None:
        given = {"shop": {"url": "postgresql://ann:geheim@db/shop?sslpassword=auch", "table": "orders"}}
        stores = self.stores(given)
        assert "geheim" not in repr(stores) + str(stores) + json.dumps(shown(stores))
        assert shown(stores)["shop"]["url"] == "postgresql://ann:***@db/shop?sslpassword=***"
        bad = {"shop": {**given["shop"], "more": 1}}
        with pytest.raises(SettingsError) as refused:
            self.stores(bad)
        assert "geheim" not in str(refused.value)
        assert "auch" not in str(refused.value)
