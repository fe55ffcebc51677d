"""A process that works as a notebook does: it runs cells that a test sends, keeps its names, and survives Ctrl-C.

What the tests of `connect` want to see happens to whole processes, so they need some of their own. All that comes of
one, Ray's processes too, carries a mark in its environment, by which it is found whoever its parent is by now.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

MARK = "DEXRAY_TEST_MARK"


class CellFailed(Exception):
    """A cell raised; `kind` is the class's name."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(f"{kind}: {text}\n{trace}")
        self.kind = kind
        self.text = text


class Program:
    """A Python program in a process group of its own; `stderr` is all it has said there."""

    def __init__(self, arguments: list[str], folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self._stderr = folder / f"stderr-{self.mark}"
        with self._stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**_clean_environ(), **(environ or {}), MARK: self.mark},
                start_new_session=True,
            )
        self._buffer = b""
        self._last_line: float = 0.0

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def line(self, timeout: float = 60.0) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                assert selector.select(max(0.0, deadline - time.monotonic())), f"no line in time; stderr: {self.stderr}"
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, f"the program has ended; stderr: {self.stderr}"
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def ctrl_c(self) -> None:
        """As a terminal does: to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, to this process alone."""
        self.process.kill()
        self.process.wait()

    def ends(self, timeout: float = 60.0) -> int:
        """Its exit code."""
        return self.process.wait(timeout)

    def family(self) -> list[psutil.Process]:
        """This process and all that came of it, as far as they live."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_gone(self, timeout: float = 10.0, agents: float = 0.0) -> None:
        """Until nobody of its family lives. Ray's agents, which hold nothing, may have more time."""
        began = time.monotonic()
        while left := {process.pid: title_of(process) for process in self.family()}:
            only_agents = all("Agent" in title for title in left.values())
            assert time.monotonic() - began < (max(agents, timeout) if only_agents else timeout), f"still there: {left}"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing that a test started outlives it."""
        for process in self.family():
            try:
                process.kill()
            except psutil.Error:
                continue
        self.process.kill()
        self.process.wait()


class Notebook(Program):
    """`run` executes a cell, and returns the value of its last line if that is an expression."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(["-m", "tests.cluster.notebook"], folder, environ)

    def run(self, cell: str, timeout: float = 90.0) -> Any:
        self.begin(cell)
        return self.result(timeout)

    def begin(self, cell: str) -> None:
        self.write(json.dumps(cell))

    def result(self, timeout: float = 90.0) -> Any:
        answer = json.loads(self.line(timeout))
        if "kind" in answer:
            raise CellFailed(answer["kind"], answer["text"], answer["trace"])
        return answer["value"]


def title_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _clean_environ() -> dict[str, str]:
    own = ("DEXRAY_", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_JOB")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def _run_cell(cell: str, names: dict[str, Any]) -> Any:
    *lines, last = cell.strip().split("\n")
    try:
        expression = compile(last, "<cell>", "eval")
    except SyntaxError:
        exec(compile(cell, "<cell>", "exec"), names)
        return None
    exec(compile("\n".join(lines), "<cell>", "exec"), names)
    return eval(expression, names)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """An interrupt in a callback of Python's own is dropped, as any program would lose it: here it comes again, since
    tests count on each."""
    if what.exc_type is KeyboardInterrupt:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(what)


def main() -> None:
    sys.unraisablehook = _unraisable
    names: dict[str, Any] = {"__name__": "__main__"}
    while True:
        answer: dict[str, Any]
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            continue
        if not line:
            return
        try:
            answer = {"value": _run_cell(json.loads(line), names)}
        except BaseException as error:
            answer = {"kind": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main()
