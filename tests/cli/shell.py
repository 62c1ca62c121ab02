"""Runs the real command line in a separate process."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from orjson import loads

from tests.support.commands import Commands
from tests.support.patience import LIMIT

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-W", "error", "-m", "jobherd.supervisor")
FORKED = frozenset(
    "audit cancel delete doctor enqueue fleet job jobs limit migrate pause purge queues reprioritize reschedule resume"
    " retry status why".split()
)
"""Commands that query the database and end. They run in a fork of one process that has imported everything."""
_commands = Commands()


def environment(dsn: str | None, **more: str) -> dict[str, str]:
    """Return the environment of a command, without variables of Jobherd except those of the test."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JOBHERD_") and name not in {"DATABASE_URL", "COLUMNS"}
    }
    kept |= {"PYTHONPATH": str(ROOT), "NO_COLOR": ""} | more
    return kept if dsn is None else kept | {"JOBHERD_DSN": dsn}


def jobherd(*words: object, dsn: str | None = None, stdin: str | bytes = b"", cwd: Path | None = None, **more: str):
    """Run a command to its end."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    texts = [str(word) for word in words]
    if texts and texts[0] in FORKED and all(name.startswith("JOBHERD_") for name in more):
        forked = _commands.run(texts, given, environment(dsn, **more), cwd, LIMIT)
        if forked is not None:
            return Answer(forked.returncode, forked.stdout.decode(), forked.stderr.decode())
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        input=given,
        capture_output=True,
        env=environment(dsn, **more),
        cwd=cwd,
        timeout=3 * LIMIT,  # some commands start a whole fleet
        check=False,
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def start(*words: object, dsn: str | None = None, cwd: Path | None = None, **more: str) -> subprocess.Popen[bytes]:
    """Start a command, with pipes as its standard streams."""
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(dsn, **more), cwd=cwd,
    )  # fmt: skip


def on_terminal(*words: object, dsn: str, columns: int = 80, stdin=None, stdout=None, **more: str) -> str:
    """Run a command on a terminal, except for the given streams. Return what the terminal shows."""
    master, slave = pty.openpty()
    try:
        pid = subprocess.Popen(
            [*COMMAND, *map(str, words)], stdin=stdin or slave, stdout=stdout or slave, stderr=slave,
            env=environment(dsn, TERM="xterm", COLUMNS=str(columns), **more),
        )  # fmt: skip
        os.close(slave)
        slave = -1
        shown = b""
        try:
            while data := os.read(master, 65536):
                shown += data
        except OSError:  # how a terminal reports that no process has its other end open
            pass
        pid.wait(LIMIT)
        return shown.decode().replace("\r\n", "\n")
    finally:
        os.close(master)
        if slave >= 0:
            os.close(slave)


class Answer:
    """The exit code and the output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- out\n{self.out}--- err\n{self.err}"

    @property
    def json(self):
        return loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()
