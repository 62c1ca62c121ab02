"""Runs a real supervisor for benchmarks and faults, and reads its log in a thread.

Each event has the monotonic time at which it was read, so that a script can measure, for example,
how long it takes to replace a child process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.support.checkout import import_path
from tests.support.patience import LIMIT
from tests.support.processes import children_of, is_running, wait_for_exit

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Event:
    """A line of the log.

    Attributes:
        at: monotonic time at which it was read.
        record: the parsed line; empty if it is not JSON.
    """

    at: float
    line: str
    record: dict[str, Any]

    @property
    def message(self) -> str:
        return str(self.record.get("message", ""))

    @property
    def pid(self) -> int:
        return int(self.record.get("pid", 0))


class Herd:
    """A supervisor.

    ``with Herd(dsn, handlers) as herd:`` waits until its workers are ready. At the end it drains the
    supervisor, or kills all its processes if the block failed.
    """

    def __init__(
        self,
        dsn: str,
        handlers: str | Path,
        *flags: str,
        workers: int = 2,
        wait: bool = True,
        env: dict[str, str] | None = None,
        root: Path = ROOT,
        netns: str = "",
        program: str = "jobherd.supervisor",
    ) -> None:
        self.workers = workers
        self.events: list[Event] = []
        self._wait = wait
        self._news = threading.Condition()
        # not the checkout, whose jobherd.toml would be read
        self._folder = tempfile.TemporaryDirectory(prefix="jobherd-herd-")
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("JOBHERD_") or name == "JOBHERD_TEST_GATE"
        }
        environment |= {"PYTHONPATH": import_path(root), "PYTHONWARNINGS": "error"} | (env or {})
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [
                *(["ip", "netns", "exec", netns] if netns else []),
                sys.executable,
                "-m",
                program,
                "run",
                *(["--dsn", dsn] if dsn else []),
                "--handlers",
                str(handlers),
                "--workers",
                str(workers),
            ]
            + ["--http", "off", "--log-format", "json", *flags],
            cwd=self._folder.name,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self._ears = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            with self._ears:
                pass
            line = raw.decode(errors="replace").rstrip("\n")
            try:
                record = json.loads(line)
            except ValueError:
                record = {}
            with self._news:
                self.events.append(Event(time.monotonic(), line, record if isinstance(record, dict) else {}))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    # -- the log

    def mark(self) -> int:
        """Return the current position in the log, for `wait_event(since=...)`."""
        with self._news:
            return len(self.events)

    def wait_event(self, wanted: Callable[[Event], bool], *, since: int = 0, timeout: float = LIMIT) -> Event:
        """Wait for the first line from `since` on for which `wanted` is true.

        Raises:
            TimeoutError: with the last lines of the log.
        """
        until = time.monotonic() + timeout
        with self._news:
            while True:
                for event in self.events[since:]:
                    if wanted(event):
                        return event
                since = max(since, len(self.events))
                left = until - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    raise TimeoutError("the log line did not appear; the log ends with\n" + self.tail())
                self._news.wait(min(left, 0.5))

    def wait_ready(self, timeout: float = LIMIT) -> None:
        """Wait until all requested workers have logged that they are ready."""
        seen = 0
        for _ in range(self.workers):
            found = self.wait_event(is_ready, since=seen, timeout=timeout)
            seen = self.events.index(found) + 1

    def deaf(self) -> contextlib.AbstractContextManager[object]:
        """Stop reading the log within the block."""
        return self._ears

    def forget(self) -> list[Event]:
        """Return the log so far and clear it; earlier marks become invalid."""
        with self._news:
            events, self.events[:] = list(self.events), []
        return events

    def tail(self, lines: int = 15) -> str:
        return "\n".join(event.line for event in self.events[-lines:])

    def messages(self, word: str) -> list[str]:
        return [event.message for event in list(self.events) if word in event.message]

    # -- processes

    def children(self) -> list[int]:
        return children_of(self.pid)

    def worker_pids(self) -> list[int]:
        """Return the pids of living workers that were ready, oldest first."""
        ready = {event.pid for event in list(self.events) if is_ready(event)}
        return [pid for pid in self.children() if pid in ready]

    def signal(self, what: signal.Signals) -> float:
        """Send a signal to the supervisor; return the monotonic time just before."""
        now = time.monotonic()
        os.kill(self.pid, what)
        return now

    def wait(self, timeout: float = LIMIT) -> int:
        """Wait until the supervisor has ended; return its exit code (negative: the signal)."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def stop(self, timeout: float = LIMIT) -> int:
        """Drain the supervisor if it runs; return its exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def destroy(self) -> None:
        """Kill the supervisor and all its descendants."""
        family = descendants(self.pid)
        for pid in [self.pid, *family]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LIMIT)
        for pid in family:
            wait_for_exit(pid, LIMIT)
        self._reader.join(LIMIT)

    def __enter__(self) -> Self:
        if self._wait:
            try:
                self.wait_ready()
            except BaseException:
                self.destroy()
                raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if self.process.poll() is not None:
                self.wait()
            elif kind is None:
                self.stop()
            else:
                self.destroy()
        finally:
            if self.process.poll() is None:
                self.destroy()
            assert self.process.stderr is not None
            self.process.stderr.close()
            self._folder.cleanup()


def is_ready(event: Event) -> bool:
    return event.message.startswith("worker ") and event.message.endswith(" is ready")


def descendants(pid: int) -> list[int]:
    """Return all living descendants of a process, nearest first."""
    found = children_of(pid)
    for child in found:
        found.extend(each for each in children_of(child) if each not in found)
    return [each for each in found if is_running(each)]
