"""Counts the jobs of each queue in the database, with its pauses, limits and tenants, the schedules and flows.

A statement reads at most `MOST` rows per queue and takes at most `STATEMENT` seconds. A statement
that takes too long is logged once; the others may still succeed.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from jobherd import sql
from jobherd.workers.web.flow_counts import FlowCounts
from jobherd.workers.web.labels import OTHERS, Labels, label
from jobherd.workers.web.schedule_counts import ScheduleCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Session = psycopg.AsyncConnection[tuple[Any, ...]]

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
DIVIDED: Final = 20
"""Most queues whose partitions are counted."""
PARTITIONS: Final = 1000
"""Most partitions counted of one queue."""
STATEMENT: Final = 2.0
"""The longest a statement may take, in seconds. The server cancels it then."""


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
    """A pause or limits."""

    scope: str
    name: str
    paused: bool
    most: int | None
    """The most jobs that may run at a time, on all hosts; None: no limit."""
    running: int | None
    per_second: float | None = None
    """The most jobs that may start in a second, on all hosts; None: no limit."""
    tokens: int | None = None
    """The jobs that may start now under it."""

    def and_also(self, other: Gate | None) -> Gate:
        """Return both combined, under the label `OTHERS`."""
        if other is None:
            return self._replace(name=OTHERS)
        capped = [gate for gate in (self, other) if gate.most is not None]
        most = sum(gate.most or 0 for gate in capped) if capped else None
        running = sum(gate.running or 0 for gate in capped) if capped else None
        rated = [gate for gate in (self, other) if gate.per_second is not None]
        per_second = sum(gate.per_second or 0.0 for gate in rated) if rated else None
        tokens = sum(gate.tokens or 0 for gate in rated) if rated else None
        return Gate(self.scope, OTHERS, self.paused or other.paused, most, running, per_second, tokens)


def _is_divided(gate: tuple[Any, ...]) -> bool:
    """Return whether a row of list_limits has weights (turns) or in_order (a limit of each partition)."""
    return gate[17] is not None or gate[19] is not None


class QueueCounts:
    """The results of the last statements.

    A queue or tenant stays once shown, with 0 jobs: a gauge that vanishes looks like one that does
    not change.

    Args:
        schema: the schema of Jobherd.
        tenants: how many tenants are shown by name; 0: none are counted.
        clock: monotonic seconds.
    """

    def __init__(self, schema: str, tenants: int, clock: Callable[[], float]) -> None:
        self.depths: dict[str, Measured] = {}
        """By state."""
        self.paused: dict[str, bool] = {}
        """For every known queue, whether it is paused."""
        self.gates: list[Gate] = []
        """All pauses and concurrency limits."""
        self.partitions: dict[str, tuple[int, int]] = {}
        """For each queue with a rule for its partitions: those with ready jobs, and those that wait for a token."""
        self.tenants: dict[tuple[str, str], int] = {}
        """The number of jobs by tenant and state."""
        self.schedules = ScheduleCounts(clock)
        self.flows = FlowCounts()
        self._schema = schema
        self._tenants = tenants
        self._clock = clock
        self._slow: set[str] = set()
        """Statements that took too long last time."""
        self._labels = Labels[str](QUEUES - 1)
        self._gate_labels = Labels[tuple[str, str]](QUEUES - 1)
        self._tenant_labels = Labels[str](TENANTS * tenants)

    async def update(self, session: Session) -> None:
        """Count everything again. Raises psycopg.Error."""
        names = await self._rows(
            session, "observe/list_queue_names", {"queues": 2 * QUEUES, "names": self._labels.all()}
        )
        known = dict.fromkeys(self.paused, False)
        for queue, paused in names:
            called = label(self._labels, str(queue))
            known[called] = known.get(called, False) or bool(paused)
        gates = await self._rows(session, "observe/list_limits", {"most": 2 * QUEUES})
        self.gates = self._gathered(
            [
                Gate(scope, name, paused, most, running, per_second, tokens)
                for scope, name, paused, _, _, _, _, most, running, _, _, _, per_second, _, _, tokens, *_ in gates
            ]
        )
        self.partitions = await self._count_partitions(session) if any(map(_is_divided, gates)) else {}
        for state in STATES:
            for called in await self._count_state(session, state):
                known.setdefault(called, False)
        self.paused = known
        if self._tenants:
            await self._count_tenants(session)
        await self.schedules.update(partial(self._in_time, session))
        await self.flows.update(partial(self._in_time, session))

    async def _count_state(self, session: Session, state: str) -> Iterable[str]:
        """Count the jobs in one state. Return the queues that have some."""
        wanted = {"most": MOST, "queues": QUEUES, "names": self._labels.all()}
        rows = await self._in_time(session, f"observe/measure_{state}", wanted, what=f"the depth of {state} jobs")
        if rows is None:
            return ()
        depths: dict[str, Depth] = {}
        for queue, jobs, capped, oldest in rows:
            called = OTHERS if queue is None else label(self._labels, str(queue))
            depths[called] = depths.get(called, _NOTHING).and_also(Depth(int(jobs), bool(capped), float(oldest)))
        self.depths[state] = Measured(time.time(), self._clock(), depths)
        return depths

    async def _count_partitions(self, session: Session) -> dict[str, tuple[int, int]]:
        wanted = {"most": PARTITIONS, "queues": DIVIDED}
        found = await self._in_time(session, "observe/measure_partitions", wanted, what="the number of partitions")
        if found is None:
            return self.partitions
        return {str(queue): (int(ready), int(throttled)) for queue, ready, throttled in found}

    async def _count_tenants(self, session: Session) -> None:
        wanted = {"most": MOST, "tenants": self._tenants}
        found = await self._in_time(session, "observe/measure_tenants", wanted, what="the number of jobs of tenants")
        if found is None:
            return
        counted = dict.fromkeys(self.tenants, 0)
        for tenant, state, jobs in found:
            key = (OTHERS if tenant is None else label(self._tenant_labels, str(tenant)), str(state))
            counted[key] = counted.get(key, 0) + int(jobs)
        self.tenants = counted

    def _gathered(self, gates: list[Gate]) -> list[Gate]:
        """Return the gates with their own labels, and one combined gate per scope for the rest."""
        shown = [gate for gate in gates if self._gate_labels.has((gate.scope, gate.name))]
        rest: dict[str, Gate] = {}
        for gate in gates:
            if not self._gate_labels.has((gate.scope, gate.name)):
                rest[gate.scope] = gate.and_also(rest.get(gate.scope))
        return shown + list(rest.values())

    async def _in_time(
        self, session: Session, name: str, parameters: dict[str, Any], *, what: str
    ) -> list[tuple[Any, ...]] | None:
        """Run a statement as `_rows` does. If it takes too long, log that once and return None.

        The other statements may still succeed.
        """
        try:
            rows = await self._rows(session, name, parameters)
        except psycopg.errors.QueryCanceled:
            if name not in self._slow:
                self._slow.add(name)
                log.warning("metrics: %s took longer than %g s to measure", what, STATEMENT)
            return None
        self._slow.discard(name)
        return rows

    async def _rows(self, session: Session, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement that the server cancels after STATEMENT seconds."""
        async with session.transaction():
            await session.execute(
                sql.load("session/limit_measurement", self._schema), {"milliseconds": round(STATEMENT * 1000)}
            )
            return await (await session.execute(sql.load(name, self._schema), parameters)).fetchall()
