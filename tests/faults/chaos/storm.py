"""Draws faults from a seed, injects them into two supervisors on one server, and checks meanwhile.

One thread does all of it, so a fault cannot wait for another. A lasting fault begins now and `later`
takes it back. The seed determines which faults are drawn and how long they last, but not when a
process reaches a named point. So a run cannot be repeated step by step.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from tests.faults.chaos.farm import Farm
from tests.faults.chaos.faults import AT_POINT, TABLE, Fault, Hit
from tests.faults.points import CORE
from tests.support.herd import LIMIT
from tests.support.points import Points

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.postgres import Cluster

PENDING = 4
"""Most armed points at a time. Each process checks for tokens at each point, which costs time."""
LOOK = 2.0
SHUTDOWN = 15.0
"""Seconds that the server gets for a fast shutdown."""
STUCK = 45.0
"""Longest time in seconds for which a row may be running without a process, on a busy machine.

The guarantee is shorter. The measured times are printed.
"""
OWNERLESS = """
SELECT r.child, r.token, coalesce(c.pid, 0) FROM jobherd.running r LEFT JOIN jobherd.children c ON c.id = r.child"""
TWICE = """
SELECT job FROM audit.steps s WHERE step = 'completed' AND number > %s
   AND EXISTS (SELECT FROM audit.steps o WHERE o.job = s.job AND o.step = 'completed' AND o.number < s.number)"""
BURST = """
SELECT jobherd.enqueue('chaos:line', '{"seconds": 0.001}', '{"queue": "bulk"}') FROM generate_series(1, %s)"""


@dataclass
class Event:
    """A fault or deed: number, seconds since the epoch, name, target."""

    number: int
    at: float
    name: str
    target: str
    pids: tuple[int, ...]
    lasts: float
    deed: bool


class Storm:
    """All faults in effect. `faults` counts the faults, `deeds` the actions of operators."""

    def __init__(
        self, cluster: Cluster, dsn: str, folder: Path, *, seed: int, rate: float, workers: int, journal: Path
    ) -> None:
        self.dice = random.Random(seed)
        self.cluster, self.dsn, self.rate = cluster, dsn, rate
        self.events: deque[Event] = deque()
        self.faults: Counter[str] = Counter()
        self.deeds: Counter[str] = Counter()
        self.wrongs: list[str] = []
        self.extra: list[int] = []
        """Acknowledged jobs that the storm itself enqueued."""
        self.ownerless: list[float] = []
        self.started: list[float] = []
        """Times at which the server was up again."""
        self._journal = journal.open("a")
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count(1)
        self._connection: psycopg.Connection[Any] | None = None
        self._suspects: dict[tuple[int, int], float] = {}
        self._seen, self._looked = 0, 0.0
        self._points = Points(folder / "points")
        self._tokens: dict[Path, str] = {}
        self.locks: list[psycopg.Connection[Any]] = []
        env = {"CHAOS_FOLDER": str(folder)} | self._points.environment
        flags = [(), ("--claim-size", "10")]
        self.farms = [
            Farm(dsn, number + 1, *flags[number % 2], workers=workers, env=env, wrong=self.wrong) for number in range(2)
        ]

    # -- For the faults

    def span(self, low: float, high: float) -> float:
        return self.dice.uniform(low, high)

    def farm(self, *, ready: bool = False) -> Farm | None:
        """A random running farm, or with `ready` one whose supervisor is up; None if there is none."""
        up = [
            farm
            for farm in self.farms
            if farm.herd is not None and farm.herd.process.poll() is None and (not ready or farm.is_up())
        ]
        return self.dice.choice(up) if up else None

    def child(self) -> int | None:
        """A random child process: a worker, a maintenance process, or one that is starting."""
        farm = self.farm()
        pids = farm.herd.children() if farm is not None and farm.herd is not None else []
        return self.dice.choice(pids) if pids else None

    def send(self, pid: int, what: signal.Signals, *, undo: signal.Signals | None = None, after: float = 0.0) -> bool:
        """Send a signal, and another one to the same process later; return whether the process existed."""
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False

        def then() -> None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, undo)  # type: ignore[arg-type]
            os.close(fd)

        try:
            signal.pidfd_send_signal(fd, what)
        except ProcessLookupError:
            os.close(fd)
            return False
        if undo is None:
            os.close(fd)
        else:
            self.later(after, then)
        return True

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), do))

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Execute a statement; return no rows while the server is down or its tables are locked."""
        try:
            if self._connection is None:
                self._connection = psycopg.connect(
                    self.dsn,
                    autocommit=True,
                    connect_timeout=5,
                    options="-c statement_timeout=3s -c lock_timeout=300ms",
                )
            cursor = self._connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as problem:
            if not isinstance(problem, psycopg.OperationalError | psycopg.InternalError):
                self.wrong(f"{statement[:60]}: {problem}")
            if self._connection is not None and (self._connection.broken or self._connection.closed):
                self._connection.close()
                self._connection = None
            return []

    def run_surely(self, statement: str) -> None:
        """Execute a statement that returns a row; repeat it every 0.5 s until it does."""
        if not self.run(statement):
            self.later(0.5, lambda: self.run_surely(statement))

    def stop_server(self, how: str, lasts: float) -> bool:
        if not self.server_runs:
            return False
        self.server_runs = False
        self._forget()
        if how != "kill":
            try:
                self.cluster.stop(how, patience=SHUTDOWN)  # type: ignore[arg-type]
            except subprocess.TimeoutExpired:
                # If PostgreSQL 18 gets a shutdown while it recovers from a dead backend, it waits for
                # a checkpointer that receives no request to exit.
                how = "kill"
        if how == "kill":
            self.cluster.kill()
        self.later(lasts, self._start_server)
        return True

    server_runs = True

    def _start_server(self) -> None:
        if not self.server_runs:
            self.cluster.start()
            self.server_runs = True
            self.started.append(time.time())

    def server_was_away(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._suspects.clear()

    def hold_lock(self, statement: str, lasts: float) -> bool:
        """Hold a lock in a separate session for `lasts` seconds."""
        try:
            connection = psycopg.connect(self.dsn, connect_timeout=5, options="-c lock_timeout=300ms")
            self.locks.append(connection)
            connection.execute(statement.encode())
        except psycopg.OperationalError:
            return False
        self.later(lasts, connection.close)
        return True

    def arm(self, what: str) -> None:
        """Put a token at a random point; the next process that reaches the point takes it."""
        if len(self._tokens) < PENDING:
            name = self.dice.choice(sorted(CORE))
            if name.startswith("parent:") and (what.startswith("delay") or self.dice.random() < 0.7):
                return
            self._tokens[self._points.arm(name, what)] = what

    def burst(self, count: int) -> Hit | None:
        rows = self.run(BURST, count)
        self.extra += [job for (job,) in rows]
        return Hit(f"{len(rows)} jobs") if rows else None

    def wrong(self, what: str) -> None:
        """Record a broken invariant."""
        self.wrongs.append(what)
        self._write({"wrong": what, "at": time.time()})

    # -- The run

    def begin(self) -> None:
        """Start both supervisors, and wait until they are up."""
        for farm in self.farms:
            farm.begin()
        self._wait_up()

    def blow(self, seconds: float, most: int, stopped: Callable[[], bool]) -> None:
        """Inject faults for `seconds`, or until there were `most`."""
        until, due = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < until and sum(self.faults.values()) < most and not stopped() and not self.wrongs:
            self._tend()
            if time.monotonic() >= due:
                self._do(self.dice.choices(TABLE, [fault.weight for fault in TABLE])[0])
                due = max(due + self.dice.expovariate(self.rate), time.monotonic() - 1.0)
            time.sleep(max(0.0, min(0.01, due - time.monotonic())))

    def calm(self) -> None:
        """Take back all faults, and wait until both supervisors are up."""
        for token in self._tokens:
            token.unlink(missing_ok=True)
        self._collect_tokens()
        while self._later:
            _, _, do = heapq.heappop(self._later)
            do()
            if not self.server_runs:
                self._start_server()
        self._wait_up()

    def _wait_up(self) -> None:
        until = time.monotonic() + LIMIT
        while not all(farm.is_up() for farm in self.farms) and time.monotonic() < until:
            self._tend()
            time.sleep(0.05)

    def rest(self) -> None:
        """Check without faults, then wait for 0.1 s."""
        self._tend()
        time.sleep(0.1)

    def close(self) -> None:
        for farm in self.farms:
            farm.close()
        for connection in [*self.locks, *([self._connection] if self._connection else [])]:
            connection.close()
        self._journal.close()

    def _do(self, fault: Fault) -> None:
        at = time.time()
        hit = fault.do(self)
        if hit is not None:
            self._count(fault.name, hit, at=at, deed=fault.deed)

    def _count(self, name: str, hit: Hit, *, at: float, deed: bool = False) -> None:
        (self.deeds if deed else self.faults)[name] += 1
        event = Event(len(self.events) + 1, at, name, hit.target, hit.pids, hit.lasts, deed)
        self.events.append(event)
        self._write(asdict(event))

    def _write(self, record: dict[str, Any]) -> None:
        self._journal.write(json.dumps(record) + "\n")
        self._journal.flush()

    def _tend(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            heapq.heappop(self._later)[2]()
        begun = [farm.supervisors for farm in self.farms]
        for farm in self.farms:
            if farm.herd is not None and farm.herd.process.poll() is not None:
                farm.begin_at = time.monotonic() + self.span(0.0, 0.7)
            farm.tend()
        if begun != [farm.supervisors for farm in self.farms]:
            self._forget()
        self._collect_tokens()
        if time.monotonic() - self._looked > LOOK and self.server_runs:
            self._looked = time.monotonic()
            self._look()

    def _collect_tokens(self) -> None:
        for token, what in list(self._tokens.items()):
            if pid := self._points.taken(token):
                del self._tokens[token]
                taken = token.with_name(f"{token.name}:{pid}")
                self.later(
                    10.0, functools.partial(taken.unlink, missing_ok=True)
                )  # The process that took it may read it only now.
                self._count(AT_POINT[what.split()[0]], Hit(f"{token.name}, process {pid}"), at=time.time())

    def _look(self) -> None:
        """Check whether a row is running without a process, and whether a job completed twice."""
        rows = self.run("SELECT coalesce(max(number), 0) FROM audit.steps")
        if rows:
            for (job,) in self.run(TWICE, self._seen):
                self.wrong(f"job {job} completed twice")
            self._seen = max(self._seen, rows[0][0] - 2000)  # Numbers are assigned before their commit.
        now, suspects = time.monotonic(), {}
        if any(farm.frozen for farm in self.farms):
            self._suspects.clear()
            return
        for child, token, pid in self.run(OWNERLESS):
            if pid and os.path.exists(f"/proc/{pid}"):
                continue
            since = suspects[child, token] = self._suspects.get((child, token), now)
            if now - since > STUCK:
                self.wrong(
                    f"no process has run the claim of worker {child} (process {pid}) with token {token} for {now - since:.0f} s"
                )
        self.ownerless += [now - since for key, since in self._suspects.items() if key not in suspects]
        self._suspects = suspects
