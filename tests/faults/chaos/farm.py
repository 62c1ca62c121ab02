"""Runs one supervisor at a time behind its own proxy, and starts a new one whenever it is dead.

It does not depend on why a supervisor died, only on whether it was allowed to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from tests.support.herd import LIMIT, Herd, is_ready
from tests.support.processes import is_running
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

WORK = Path(__file__).with_name("work.py")
LEASE = 3.0
FLAGS = (
    "--poll", "1s", "--lease", f"{LEASE:g}s", "--respawn-initial", "10ms", "--respawn-max", "100ms", "--drain-timeout", "3s", "--grace", "500ms",
    "--db-retry-initial", "100ms", "--db-retry-max", "1s",
)  # fmt: skip
GLANCE = 0.5
"""Seconds between two searches for processes that a dead supervisor has left behind.

Each search reads all processes of the machine.
"""


CANARY = "canary-4f1c0e"
"""A secret, used as the password of each DSN and in payloads. No log line may contain it."""
TOLD = 40
"""Log lines to show from a traceback on."""


class Farm:
    """Runs one supervisor at a time behind a proxy. It calls `wrong` with a text if an invariant is broken."""

    def __init__(
        self, dsn: str, number: int, *flags: str, workers: int, env: dict[str, str], wrong: Callable[[str], None]
    ) -> None:
        self.number = number
        self.proxy = Proxy(dsn)
        self.frozen = self.leaving = False
        self.supervisors = 0
        self.gone: list[float] = []
        """Seconds from the death of each supervisor until no process of it was left."""
        self.lines = 0
        """Log lines of dead supervisors, those of their child processes included."""
        self.begin_at = 0.0
        self._flags, self._workers, self._env, self._wrong = flags, workers, env, wrong
        self._orphans: dict[int, tuple[Herd, float]] = {}
        self._looked = 0.0
        self._allowed: set[int] = set()
        self.herd: Herd | None = None

    def begin(self) -> None:
        self.supervisors += 1
        self.frozen = self.leaving = False
        self._allowed = {-signal.SIGKILL}  # A kill at a named point can hit any supervisor.
        self.herd = Herd(
            make_conninfo(self.proxy.dsn, password=CANARY),
            WORK,
            *FLAGS,
            *self._flags,
            workers=self._workers,
            wait=False,
            env=self._env,
        )

    def is_up(self) -> bool:
        """Whether a supervisor runs there, one of whose child processes has become ready."""
        return (
            self.herd is not None
            and self.herd.process.poll() is None
            and any(is_ready(event) for event in list(self.herd.events))
        )

    def signal(self, what: signal.Signals, *allowed: int) -> list[int]:
        """Send a signal to the supervisor, which may now also exit with these codes; return its child processes."""
        assert self.herd is not None
        self._allowed.update(allowed)
        children = self.herd.children()
        self.herd.signal(what)
        return children

    def tend(self, *, again: bool = True) -> None:
        """Clear up after a supervisor that has exited, and start a new one when it is time."""
        now = time.monotonic()
        if self.herd is None:
            if again and now >= self.begin_at:
                self.begin()
        elif (code := self.herd.process.poll()) is not None:
            if code not in self._allowed:
                self._wrong(
                    f"supervisor {self.herd.pid} exited unexpectedly with {code}; its log ends with\n{self.herd.tail(40)}"
                )
            self._orphans[self.herd.pid] = (self.herd, now)
            self.herd = None
        if self._orphans and now - self._looked > GLANCE:
            self._look_for_orphans()

    def _listen_to_the_end(self, herd: Herd) -> None:
        """Read the rest of a supervisor's log, once all its processes are gone.

        The log does not end while one of its child processes is frozen.
        """
        herd.wait()
        lines = [event.line for event in herd.events]
        self.lines += len(lines)
        if told := [line for line in lines if CANARY in line]:
            self._wrong(f"a secret in the log: {told[0]}")
        for place, line in enumerate(lines):
            if "Traceback" in line and "ConnectionError: not yet" not in line:
                self._wrong("a traceback in the log: " + "\n".join(lines[max(place - 5, 0) : place + TOLD]))
        with suppress(Exception):
            herd.__exit__(None)

    def _look_for_orphans(self) -> None:
        self._looked = time.monotonic()
        left = dict.fromkeys(self._orphans, 0)
        for name in os.listdir("/proc"):
            with suppress(ValueError, OSError):
                session = os.getsid(int(name))
                if session in left:
                    with suppress(ChildProcessError):
                        os.waitpid(int(name), os.WNOHANG)  # Its supervisor is dead, and this process reaps its orphans.
                    left[session] += is_running(int(name))
        for session, count in left.items():
            if not count:
                herd, died = self._orphans.pop(session)
                self.gone.append(time.monotonic() - died)
                self._listen_to_the_end(herd)

    def leave(self) -> int | None:
        """Drain the last supervisor and wait until all processes are gone; return its exit code."""
        code = None
        if self.herd is not None:
            try:
                code = self.herd.stop(3 * LIMIT)
            except subprocess.TimeoutExpired:
                self._wrong(f"supervisor {self.herd.pid} does not leave; it said\n{self.herd.tail(40)}")
                self.herd.destroy()
            self._allowed.add(self.herd.wait())
            self.tend(again=False)
        until = time.monotonic() + LIMIT
        while self._orphans and time.monotonic() < until:
            time.sleep(0.1)
            self._look_for_orphans()
        for session in self._orphans:
            words = ["ps", "-o", "pid=,stat=,wchan=,etime=,args=", "-s", str(session)]
            found = subprocess.run(words, capture_output=True, text=True, check=False).stdout
            self._wrong(f"processes of supervisor {session} are left:\n{found}")
        return code

    def descriptors(self) -> tuple[int, int]:
        """How many open files and how many child processes the supervisor has."""
        return files_of(self.herd) if self.herd is not None else (0, 0)

    def close(self) -> None:
        """Kill the remaining supervisor, and stop the proxy."""
        if self.herd is not None:
            with suppress(Exception):
                self.herd.__exit__(RuntimeError, None, None)
        self.proxy.heal()
        self.proxy.__exit__()


def files_of(herd: Herd) -> tuple[int, int]:
    """How many open files and how many child processes a supervisor has."""
    return len(os.listdir(f"/proc/{herd.pid}/fd")), len(herd.children())
