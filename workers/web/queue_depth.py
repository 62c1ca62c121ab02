"""Measures the depth of the queues in the database: rarely, only for a scrape, and at limited cost.

`queue_counts.py` has the statements and their limits. The result is kept for `PERIOD` seconds, or for
`EASE` times as long as the measurement took, up to `REST_MOST`. No scrape waits for an
unreachable database: it then shows the status boards and when the depths were last measured. An
error is logged by its class only, because its text can quote the DSN.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OURS
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.database.errors import error_name
from jobherd.workers.web.queue_counts import QueueCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.workers.web.flow_counts import FlowCounts
    from jobherd.workers.web.queue_counts import Gate, Measured
    from jobherd.workers.web.schedule_counts import ScheduleCounts

log = logging.getLogger("jobherd")

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


class Measurer:
    """Measures on its own database session, at most one measurement at a time."""

    def __init__(
        self,
        dsn: str,
        schema: str = sql.SCHEMA,
        *,
        tenants: int = 0,
        clock: Callable[[], float] = time.monotonic,
        on_session: Callable[[bool], object] = bool,
    ) -> None:
        """Set up; no connection is opened yet.

        Args:
            dsn: the database to measure.
            schema: the schema of Jobherd.
            tenants: how many tenants are shown by name; 0: none are measured.
            clock: monotonic seconds.
            on_session: called with True when a session begins and with False when it ends.
        """
        self._counts = QueueCounts(schema, tenants, clock)
        self._dsn = dsn
        self._clock = clock
        self._on_session = on_session
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._running: asyncio.Task[None] | None = None
        self._next = -float("inf")
        self._backoff = Backoff(PERIOD, REST_MOST)
        self._away = False

    def hurry(self) -> None:
        """End the pause after a failure: perhaps the database is back."""
        if self._away:
            self._next = -float("inf")

    @property
    def is_up(self) -> bool:
        """Whether the last measurement has reached the database."""
        return not self._away and bool(self._counts.depths)

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
        return {state: found for state, found in self._counts.depths.items() if now - found.taken < STALE}

    def measured_at(self) -> dict[str, float]:
        """Return when each state was last measured, in Unix time.

        Stale measurements are included: a timestamp that vanished with the depths could not raise
        an alert.
        """
        return {state: found.at for state, found in self._counts.depths.items()}

    def paused(self) -> dict[str, bool]:
        """Return for every known queue whether it is paused; empty if the measurement is stale."""
        return self._counts.paused if self.latest() else {}

    def tenants(self) -> dict[tuple[str, str], int]:
        """Return the number of jobs by tenant and state; empty if the measurement is stale.

        Tenants that are not shown by name count as `OTHERS`.
        """
        return self._counts.tenants if self.latest() else {}

    def partitions(self) -> dict[str, tuple[int, int]]:
        """Return the partitions with ready jobs, and those that wait for a token, by queue; empty if stale."""
        return self._counts.partitions if self.latest() else {}

    def gates(self) -> list[Gate]:
        """Return all pauses and concurrency limits; empty if the measurement is stale."""
        return self._counts.gates if self.latest() else []

    def schedules(self) -> ScheduleCounts | None:
        """Return the state of the schedules and their instants; None if the measurement is stale."""
        return self._counts.schedules if self.latest() else None

    def flows(self) -> FlowCounts | None:
        """Return the state of the flows and of blocked jobs; None if the measurement is stale."""
        return self._counts.flows if self.latest() else None

    async def close(self) -> None:
        """Cancel a running measurement and close the session."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
        await self._close_session()

    async def _measure(self) -> None:
        started = self._clock()
        try:
            async with asyncio.timeout(LOST):
                connection = await self._connect()
                await self._counts.update(connection)
        except Exception as error:
            await self._close_session()
            self._lose(error)
        else:
            self._backoff.reset()
            if self._away:
                self._away = False
                log.info("metrics: the database is back, the depth of the queues is measured again")
            self._next = self._clock() + min(REST_MOST, max(PERIOD, EASE * (self._clock() - started)))
        finally:
            self._running = None

    def _lose(self, error: Exception) -> None:
        self._next = self._clock() + self._backoff.next()
        if not self._away:
            self._away = True
            log.warning(
                "metrics: the depth of the queues cannot be measured (%s); the other metrics continue",
                error_name(error),
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
            await self._connection.execute(
                sql.load("session/disable_idle_timeout"), {"promised": self._connection.info.backend_pid}
            )
            self._on_session(True)
        return self._connection

    async def _close_session(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._on_session(False)
            await connection.close()
