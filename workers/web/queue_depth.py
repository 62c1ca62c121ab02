"""Measures the depth of the queues in the database: rarely, only for a scrape, and at limited cost.

A measurement reads at most `MOST` rows per queue, and each statement may take `STATEMENT` seconds.
The result is kept for `PERIOD` seconds, or for `EASE` times as long as the measurement took, up to
`REST_MOST`. No scrape waits for an unreachable database: it then shows the status boards and when
the depths were last measured. An error is logged by its class only, because its text can quote the
DSN.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OURS
from jobherd.workers.web.labels import OTHERS, Labels, label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger("jobherd")

STATES: Final = ("ready", "scheduled", "running")
MOST: Final = 100_000
"""Most rows counted of one queue and state; fewer if there are very many queues."""
QUEUES: Final = 200
"""Most queues shown. All queues without their own label count as one.

Each queue adds a few time series to the monitoring system.
"""
TENANTS: Final = 10
"""Tenants that get a label in the life of this process, per tenant that is shown at once."""
PERIOD: Final = 5.0
"""Seconds for which a measurement is kept."""
EASE: Final = 20.0
"""A measurement is also kept for this times its duration.

So measuring takes at most a twentieth of the time of one session.
"""
REST_MOST: Final = 30.0
"""The longest pause between two measurements, in seconds."""
STALE: Final = 120.0
"""Seconds after which a measurement is no longer shown: a gap is better than a wrong value."""
STATEMENT: Final = 2.0
"""The longest a statement may take, in seconds. The server cancels it then."""
LOST: Final = 20.0
"""Seconds after which a measurement is given up and its session closed.

A device in between may acknowledge every packet and forward none. The server never cancels then.
"""
PATIENCE: Final = 1.0
"""The longest a scrape waits for a new measurement, in seconds."""

_SESSION: Final[dict[str, Any]] = {
    "application_name": "jobherd web",
    "client_encoding": "UTF8",
    "connect_timeout": 3,
    # If a network drops packets, the kernel would otherwise keep the session for a quarter of an
    # hour.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8000,
}


@dataclass(frozen=True, slots=True)
class Depth:
    """The jobs of one queue in one state."""

    jobs: int
    capped: bool = False
    """Whether `jobs` is a lower bound: the count stopped there."""
    oldest: float = 0.0
    """Seconds since the oldest job became due (ready, scheduled) or was claimed (running)."""

    def and_also(self, other: Depth) -> Depth:
        """Return both combined."""
        return Depth(self.jobs + other.jobs, self.capped or other.capped, max(self.oldest, other.oldest))


_NOTHING: Final = Depth(0)


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one measurement of one state."""

    at: float
    """Unix time."""
    taken: float
    """Monotonic time."""
    depths: Mapping[str, Depth] = field(default_factory=dict)


class Gate(NamedTuple):
    """A pause or a concurrency limit."""

    scope: str
    name: str
    paused: bool
    most: int | None
    """The most jobs that may run at a time, on all hosts; None: no limit."""
    running: int | None

    def and_also(self, other: Gate | None) -> Gate:
        """Return both combined, under the label `OTHERS`."""
        if other is None:
            return self._replace(name=OTHERS)
        capped = [gate for gate in (self, other) if gate.most is not None]
        most = sum(gate.most or 0 for gate in capped) if capped else None
        running = sum(gate.running or 0 for gate in capped) if capped else None
        return Gate(self.scope, OTHERS, self.paused or other.paused, most, running)


class Measurer:
    """Measures on its own database session, at most one measurement at a time."""

    def __init__(
        self,
        dsn: str,
        schema: str = sql.SCHEMA,
        *,
        tenants: int = 0,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[bool], object] = bool,
    ) -> None:
        """Set up; no connection is opened yet.

        Args:
            dsn: the database to measure.
            schema: the schema of Jobherd.
            tenants: how many tenants are shown by name; 0: none are measured.
            clock: monotonic seconds.
            tell: called with True when a session begins and with False when it ends.
        """
        self._tenants = tenants
        self._owned: dict[tuple[str, str], int] = {}
        self._dsn = dsn
        self._schema = schema
        self._clock = clock
        self._tell = tell
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._running: asyncio.Task[None] | None = None
        self._next = -float("inf")
        self._rest = PERIOD
        self._away = False
        self._failing: set[str] = set()
        self._found: dict[str, Measured] = {}
        self._labels = Labels[str](QUEUES - 1)
        self._gate_labels = Labels[tuple[str, str]](QUEUES - 1)
        self._tenant_labels = Labels[str](TENANTS * tenants)
        self._paused: dict[str, bool] = {}
        self._gates: list[Gate] = []

    def hurry(self) -> None:
        """End the pause after a failure: perhaps the database is back."""
        if self._away:
            self._next = -float("inf")

    async def refresh(self, patience: float = PATIENCE) -> None:
        """Start a measurement if the last is too old.

        Wait at most `patience` seconds for its result.
        """
        if self._running is None and self._clock() >= self._next:
            self._running = asyncio.get_running_loop().create_task(self._measure())
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=patience)

    def latest(self) -> dict[str, Measured]:
        """Return the last measurement of each state, unless it is stale.

        A queue that was seen once stays known, with depth 0.
        """
        now = self._clock()
        return {state: found for state, found in self._found.items() if now - found.taken < STALE}

    def told_at(self) -> dict[str, float]:
        """Return when each state was last measured, in Unix time.

        Stale measurements are included: a timestamp that vanished with the depths could not raise
        an alert.
        """
        return {state: found.at for state, found in self._found.items()}

    def paused(self) -> dict[str, bool]:
        """Return for every known queue whether it is paused; empty if the measurement is stale."""
        return self._paused if self.latest() else {}

    def tenants(self) -> dict[tuple[str, str], int]:
        """Return the number of jobs by tenant and state; empty if the measurement is stale.

        Tenants that are not shown by name count as `OTHERS`.
        """
        return self._owned if self.latest() else {}

    def gates(self) -> list[Gate]:
        """Return all pauses and concurrency limits; empty if the measurement is stale."""
        return self._gates if self.latest() else []

    async def close(self) -> None:
        """Cancel a running measurement and close the session."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
        await self._hang_up()

    async def _measure(self) -> None:
        started = self._clock()
        try:
            async with asyncio.timeout(LOST):
                connection = await self._connect()
                await self._ask(connection)
        except Exception as error:
            await self._hang_up()
            self._lose(error)
        else:
            self._rest = PERIOD
            if self._away:
                self._away = False
                log.info("metrics: the database is back, the depth of the queues is measured again")
            self._next = self._clock() + min(REST_MOST, max(PERIOD, EASE * (self._clock() - started)))
        finally:
            self._running = None

    def _lose(self, error: Exception) -> None:
        self._next = self._clock() + self._rest
        self._rest = min(2 * self._rest, REST_MOST)
        if not self._away:
            self._away = True
            log.warning(
                "metrics: the depth of the queues cannot be measured (%s); the rest of the metrics goes on",
                name_of(error),
            )

    async def _connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = await psycopg.AsyncConnection.connect(
                self._dsn,
                autocommit=True,
                prepare_threshold=None,  # a pooler in transaction mode would lose prepared statements
                context=OURS,
                **_SESSION,
            )
            await self._connection.execute(sql.load("allow_idling"), {"promised": self._connection.info.backend_pid})
            self._tell(True)
        return self._connection

    async def _rows(
        self, connection: psycopg.AsyncConnection[tuple[Any, ...]], name: str, parameters: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Run a statement that the server cancels after STATEMENT seconds."""
        async with connection.transaction():
            await connection.execute(
                sql.load("steer_measuring", self._schema), {"milliseconds": round(STATEMENT * 1000)}
            )
            return await (await connection.execute(sql.load(name, self._schema), parameters)).fetchall()

    async def _in_time(
        self, connection: psycopg.AsyncConnection[tuple[Any, ...]], name: str, parameters: dict[str, Any], *, what: str
    ) -> list[tuple[Any, ...]] | None:
        """Run a statement as `_rows` does. If it takes too long, log that once and return None.

        The other statements may still succeed.
        """
        try:
            rows = await self._rows(connection, name, parameters)
        except psycopg.errors.QueryCanceled:
            if name not in self._failing:
                self._failing.add(name)
                log.warning("metrics: %s took longer than %g s to measure", what, STATEMENT)
            return None
        self._failing.discard(name)
        return rows

    async def _ask(self, connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        names = await self._rows(connection, "name_queues", {"queues": 2 * QUEUES, "names": self._labels.all()})
        # A queue stays once shown: a gauge that vanishes looks like one that does not change.
        known = dict.fromkeys(self._paused, False)
        for queue, paused in names:
            called = label(self._labels, str(queue))
            known[called] = known.get(called, False) or bool(paused)
        gates = await self._rows(connection, "list_gates", {"most": 2 * QUEUES})
        self._gates = self._gathered(
            [Gate(scope, name, paused, most, running) for scope, name, paused, _, _, _, _, most, running, *_ in gates]
        )
        for state in STATES:
            wanted = {"most": MOST, "queues": QUEUES, "names": self._labels.all()}
            rows = await self._in_time(connection, f"measure_{state}", wanted, what=f"the depth of {state} jobs")
            if rows is None:
                continue
            depths: dict[str, Depth] = {}
            for queue, jobs, capped, oldest in rows:
                called = OTHERS if queue is None else label(self._labels, str(queue))
                depths[called] = depths.get(called, _NOTHING).and_also(Depth(int(jobs), bool(capped), float(oldest)))
            self._found[state] = Measured(time.time(), self._clock(), depths)
            for called in depths:
                known.setdefault(called, False)
        self._paused = known
        if self._tenants:
            found = await self._in_time(
                connection,
                "measure_tenants",
                {"most": MOST, "tenants": self._tenants},
                what="the number of jobs of tenants",
            )
            if found is None:
                return
            # A tenant without jobs is shown with 0: a gauge that vanishes looks like one that does
            # not change.
            owned = dict.fromkeys(self._owned, 0)
            for tenant, state, jobs in found:
                key = (OTHERS if tenant is None else label(self._tenant_labels, str(tenant)), str(state))
                owned[key] = owned.get(key, 0) + int(jobs)
            self._owned = owned

    def _gathered(self, gates: list[Gate]) -> list[Gate]:
        """Return the gates with their own labels, and one combined gate per scope for the rest."""
        shown = [gate for gate in gates if self._gate_labels.has((gate.scope, gate.name))]
        rest: dict[str, Gate] = {}
        for gate in gates:
            if not self._gate_labels.has((gate.scope, gate.name)):
                rest[gate.scope] = gate.and_also(rest.get(gate.scope))
        return shown + list(rest.values())

    async def _hang_up(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._tell(False)
            await connection.close()


def name_of(error: BaseException) -> str:
    """Return what may be logged of a database error: its class, and its SQLSTATE if it has one.

    >>> name_of(psycopg.errors.QueryCanceled())
    'QueryCanceled, 57014'
    """
    code = getattr(error, "sqlstate", None)
    return f"{type(error).__name__}, {code}" if code else type(error).__name__
