"""Tests that every block of the pages works as shown.

Each page runs from top to bottom, with its own folder and a fresh database.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import psycopg
import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks, named
from tests.support.patience import LIMIT

RUNNABLE = ("python", "sql", "console")
TEXT = ("text", "toml", "ini", "yaml", "promql", "mermaid", "json", "sh", "")
"""Languages of blocks that are not run."""
IN_FULL = {ROOT / "README.md", *map(named, (
    "first-job", "security", "stop-reload-resize", "retention", "deploy", "runbook",
))}  # fmt: skip
"""Pages whose commands in `console` blocks are all run. On others, only those that begin with `jobherd` are."""


def noon(now: float) -> str:
    """Return the name of a time zone in which the hour is 12.

    A page whose rules depend on the hour then runs at the same hour each time.

    Otherwise a page passes at night and hangs by day, because its own rule admits no job between 8:00
    and 18:00.
    """
    return f"NOON{time.gmtime(now).tm_hour - 12:+d}"


class Reader:
    """Follows a page with a folder, a database and a shell."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self._dsn = dsn
        self._standing: list[subprocess.Popen[bytes]] = []
        tools = folder / ".bin"
        tools.mkdir()
        (tools / "jobherd").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m jobherd.supervisor "$@"\n')
        (tools / "jobherd").chmod(0o755)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JOBHERD_", "DATABASE_URL", "COLUMNS"))
        }
        self._environment = kept | {
            "PATH": f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "JOBHERD_DSN": dsn,
            "DATABASE_URL": dsn,
            "JOBHERD_HTTP": "off",  # two pages may run at once on one host
            "TZ": noon(time.time()),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._standing:
            process.kill()
            process.communicate()

    def follow(self, block: Block) -> None:
        if path := block.path:
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        match block.language:
            case "python":
                self._python(block)
            case "sql":
                self._sql(block)
            case "console":
                self._console(block)

    def leave(self) -> None:
        """Stop each process that still runs. A supervisor must drain and exit with 0."""
        for process in self._standing:
            process.send_signal(signal.SIGTERM)
        for process in self._standing:
            _, said = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, said.decode()
        self._standing.clear()

    def _python(self, block: Block) -> None:
        if path := block.path:
            file = self.folder / path
            words = (
                ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
                if file.name.startswith("test_")
                else [str(file)]
            )
        else:
            file = self.folder / f"block_{block.line}.py"
            file.write_text(block.text)
            words = [str(file)]
        self._run([sys.executable, "-P", "-W", "error", *words], block, 0)

    def _sql(self, block: Block) -> None:
        assert not re.search(r"\b(commit|rollback)\b", block.text, re.IGNORECASE), (
            f"{block.where}: it must be possible to roll the statements back"
        )
        with psycopg.connect(self._dsn) as connection:
            try:
                connection.execute(block.text.encode())
            except psycopg.Error as problem:
                pytest.fail(f"{block.where}: {problem}\n{block.text}")
            connection.rollback()

    def _console(self, block: Block) -> None:
        commands = [c for c in block.commands if block.page in IN_FULL or c.line.startswith("jobherd ")]
        for place, command in enumerate(commands):
            if "stays" in block.marks:
                self._stand(command.line, block)
                continue
            said = self._run(["bash", "-c", command.line], block, block.exits if place == len(commands) - 1 else 0)
            assert_shown(command.shows, said, block)

    def _run(self, words: list[str], block: Block, code: int) -> str:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5 * LIMIT,  # a block may be a whole run of pytest
            check=False,
        )
        assert done.returncode == code, (
            f"{block.where}: exit code {done.returncode}, not {code}\n{words[-1]}\n--- out\n{done.stdout}--- err\n{done.stderr}"
        )
        return done.stdout + done.stderr

    def _stand(self, line: str, block: Block) -> None:
        """Start a supervisor and wait until it logs that a worker is ready."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._standing.append(process)
        assert process.stderr is not None
        until, said = time.monotonic() + LIMIT, b""
        while b"worker 0 is ready" not in said:
            assert select.select([process.stderr], [], [], max(0.0, until - time.monotonic()))[0], (
                f"{block.where}: no worker is ready\n{said.decode()}"
            )
            chunk = os.read(process.stderr.fileno(), 65536)
            assert chunk, f"{block.where}: the supervisor exited\n{said.decode()}"
            said += chunk


def plain(line: str) -> str:
    """Return a line without the parts that differ between runs: numbers, hosts, widths of columns."""
    line = re.sub(r"\S+/\d+", "HOST", line)
    line = re.sub(r"\d+(\.\d+)?(?: ?(µs|ms|s|min|m|h|d)\b)?(?: \d+ (s|min|h)\b)?", "0", line)
    line = re.sub(r"[─-]{2,}", "-", line)
    return " ".join(line.split())


def printed_in(line: str) -> str:
    """Return the output of a handler if this JSON line of a log contains it, otherwise the line.

    Pages omit what a terminal shows before the output.
    """
    try:
        event = json.loads(line)
    except ValueError:
        return line
    return str(event["message"]) if isinstance(event, dict) and event.get("logger") == "jobherd.output" else line


def assert_shown(shows: list[str], said: str, block: Block) -> None:
    """Check that the output has each line that the page shows, in that order. `...` stands for any lines."""
    left = [plain(printed_in(line)) for line in said.splitlines()]
    for line in shows:
        wanted = plain(line)
        if wanted in {"", "..."}:
            continue
        assert wanted in left, f"{block.where}: the page shows\n  {line}\nbut the command printed\n{said}"
        left = left[left.index(wanted) + 1 :]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language in RUNNABLE for b in blocks(page))], ids=lambda page: page.name
)
def test_blocks_of_a_page_work_as_shown(page, database, tmp_path):
    with Reader(tmp_path, database) as reader:
        for block in blocks(page):
            if "not" not in block.marks:
                reader.follow(block)
        reader.leave()


def test_every_block_has_a_known_language():
    odd = [f"{b.where} {b.language!r}" for page in PAGES for b in blocks(page) if b.language not in RUNNABLE + TEXT]
    assert not odd, odd


def test_assert_shown_compares_lines_and_their_order():
    block = Block(PAGES[0], 1, "console", "")
    assert_shown(["ID  STATE", "...", " 2  completed  3.0 s ago"], "ID STATE\nx\n17 completed 1 min 40 s ago\n", block)
    with pytest.raises(AssertionError):
        assert_shown(["1 failed"], "1 completed\n", block)
    with pytest.raises(AssertionError):
        assert_shown(["b", "a"], "a\nb\n", block)


def test_pages_run_at_noon(monkeypatch):
    with monkeypatch.context() as patch:
        for hour in range(24):
            patch.setenv("TZ", noon(hour * 3600 + 59))
            time.tzset()
            assert time.localtime(hour * 3600 + 59).tm_hour == 12
    time.tzset()
