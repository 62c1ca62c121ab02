"""Queries the database for `top` on one session, and reconnects. It decides and shows nothing.

Values that change every second are queried each time. The queue depths are measured again only
after twenty times the duration of the last measurement. So a large backlog takes at most a
twentieth of one session's time. The metrics use the same statements in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from jobherd import sql
from jobherd.handlers._enqueue.adapters import OURS
from jobherd.supervisor.cli.database import JsonLoader
from jobherd.supervisor.cli.job_page import lines_of
from jobherd.supervisor.cli.top.opened import Opened
from jobherd.workers.inspect.attention import PARAMETERS, attention
from jobherd.workers.inspect.failures import error_name, given_code
from jobherd.workers.web.labels import OTHERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.workers.inspect.attention import Item

Row: TypeAlias = "dict[str, Any]"

MOST: Final = 100_000
"""Most jobs of a queue that are counted; beyond that only "more" is shown."""
QUEUES: Final = 200
RETRYING: Final = 10_000
"""Most scheduled jobs that are examined for retries."""
ROWS: Final = 200
"""Most rows of a list that are queried; no screen shows more."""
STATEMENT: Final = 2.0
"""Seconds that a statement may take; the server cancels it then."""
EASE: Final = 20.0
SPAN: Final = 10.0
"""Seconds over which the rate is calculated."""
_STATES: Final = ("ready", "scheduled", "running")
_SESSION: Final[dict[str, Any]] = {
    "connect_timeout": 3,
    # A network that drops packets must be noticed while the user watches.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 6000,
}


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one update from the database. Durations are in seconds."""

    supervisors: list[Row] = field(default_factory=list)
    children: list[Row] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    gates: list[Row] = field(default_factory=list)
    """Pauses and limits of kinds and of everything; those of queues are in `queues`."""
    running: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    """Jobs that failed, and before them the groups of retrying jobs, which have `next_in`."""
    retrying: int = 0
    """Jobs that wait for another attempt, of the next `RETRYING` scheduled ones."""
    attention: list[Item] = field(default_factory=list)
    """What needs attention, the most urgent first."""
    rate: float | None = None
    """Jobs that ended per second, lately; None before the second update."""
    failed: int = 0
    """Jobs that failed in the last hour."""
    retried: int = 0
    """Attempts that failed in the last hour and were followed by another."""
    opened: Opened | None = None
    """The job that the user has opened."""


@dataclass(frozen=True, slots=True)
class Act:
    """An action of the user.

    Args:
        statement: one of the statements in `sql/queries`.
        parameters: its parameters.
        result: returns a sentence for its result.
    """

    statement: str
    parameters: Mapping[str, object]
    result: Callable[[Row], str]


class Watch:
    """Queries the database and runs actions.

    Args:
        dsn: the database.
        schema: the schema of Jobherd.
        actor: the user, for the audit log.
        clock: monotonic seconds; default: the real clock.
    """

    def __init__(
        self, dsn: str, schema: str = sql.SCHEMA, *, actor: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        given = conninfo_to_dict(dsn)
        self._dsn = make_conninfo(dsn, **{name: value for name, value in _SESSION.items() if name not in given})
        self._schema = schema
        self._actor = actor
        self._clock = clock
        self._connection: psycopg.AsyncConnection[Row] | None = None
        self._connecting = asyncio.Lock()
        self._asking = asyncio.Lock()
        """Held for a transaction: an action must not run inside the transaction of an update."""
        self._ended: deque[tuple[float, int]] = deque()
        self._depths: dict[str, dict[str, Row]] = {}
        self._again: list[Row] = []
        """Groups of jobs that retry."""
        self._items: list[Item] = []
        self._failures: Row = {"failed": 0, "retried": 0}
        self._next = -float("inf")

    async def look(self, job: int | None = None) -> Look:
        """Query once. Raises psycopg.Error; after a lost session the next call starts a new one.

        Args:
            job: the job to show in full.
        """
        try:
            return await self._look(job)
        except psycopg.OperationalError as problem:
            if not isinstance(problem, psycopg.errors.QueryCanceled):
                await self.close()
            raise

    async def act(self, act: Act) -> str:
        """Run an action and return a sentence for its result. Raises psycopg.Error."""
        return act.result((await self._rows(act.statement, {**act.parameters, "actor": self._actor}))[0])

    async def close(self) -> None:
        """Close the session."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _rows(
        self, name: str, parameters: Mapping[str, object] | None = None, *, json_as_text: bool = False
    ) -> list[Row]:
        connection = await self._session()
        async with self._asking, connection.transaction():
            await connection.execute(
                sql.load("session/limit_measurement", self._schema).encode(), {"milliseconds": round(STATEMENT * 1000)}
            )
            cursor = connection.cursor()
            for kind in ("json", "jsonb") if json_as_text else ():
                cursor.adapters.register_loader(kind, JsonLoader)
            await cursor.execute(sql.load(name, self._schema).encode(), parameters or {})
            return await cursor.fetchall()

    async def _session(self) -> psycopg.AsyncConnection[Row]:
        async with self._connecting:  # an action may run while an update connects: one session is enough
            connection = self._connection
            if connection is None or connection.closed:
                connection = await psycopg.AsyncConnection.connect(
                    self._dsn,
                    autocommit=True,
                    row_factory=dict_row,
                    context=OURS,
                    fallback_application_name="jobherd top",
                    client_encoding="UTF8",
                )
                connection.prepare_threshold = None  # a pooler in between may send each statement to another backend
                self._connection = connection
                self._ended.clear()  # a server that was restored or crashed counts from the beginning
                await connection.execute(
                    sql.load("session/disable_idle_timeout").encode(), {"promised": connection.info.backend_pid}
                )
            return connection

    async def _look(self, job: int | None) -> Look:
        ended = (await self._rows("top/count_ended"))[0]["ended"]
        gates = await self._rows("observe/list_limits", {"most": ROWS})
        await self._measure()
        retrying = [_retrying(row) for row in self._again]
        return Look(
            supervisors=await self._rows("observe/list_fleet", {"most": ROWS}),
            children=await self._rows("observe/list_children"),
            queues=self._queues([gate for gate in gates if gate["scope"] == "queue"]),
            gates=[gate for gate in gates if gate["scope"] != "queue"],
            running=await self._rows("top/list_running", {"most": ROWS}),
            failures=retrying + _alike(await self._rows("top/list_failures", {"most": ROWS})),
            retrying=self._again[0]["total"] if self._again else 0,
            attention=self._items,
            rate=self._rate(ended),
            failed=self._failures["failed"],
            retried=self._failures["retried"],
            opened=None if job is None else await self._open(job),
        )

    async def _open(self, job: int) -> Opened:
        rows = await self._rows("observe/show_jobs", {"ids": [job]}, json_as_text=True)
        if not rows:
            return Opened(job, (f"job {job} not found: it was deleted, or its retention has ended",))
        logs = await self._rows("observe/show_logs", {"id": job}, json_as_text=True)
        keys = await self._rows("observe/show_key", {"id": job})
        return Opened(job, tuple(lines_of(rows[0], keys[0] if keys else None, logs)))

    async def _measure(self) -> None:
        """Measure the depths, if the last measurement is old enough."""
        started = self._clock()
        if started < self._next:
            return
        wanted = {"most": MOST, "queues": QUEUES, "names": []}
        for state in _STATES:
            try:
                rows = await self._rows(f"observe/measure_{state}", wanted)
            except psycopg.errors.QueryCanceled:  # a state that took too long keeps its last depth
                continue
            self._depths[state] = {row["queue"] or OTHERS: row for row in rows}
        with suppress(psycopg.errors.QueryCanceled):
            self._again = await self._rows("observe/list_retrying", {"most": RETRYING, "rows": ROWS})
        with suppress(psycopg.errors.QueryCanceled):
            self._items = attention(await self._rows("observe/list_attention", PARAMETERS))
        with suppress(psycopg.errors.QueryCanceled):
            [self._failures] = await self._rows("top/count_failures")
        ended = self._clock()
        self._next = ended + EASE * (ended - started)

    def _queues(self, gates: list[Row]) -> list[Row]:
        found: dict[str, Row] = {gate["name"]: {"gate": gate} for gate in gates}
        for state, depths in self._depths.items():
            for queue, depth in depths.items():
                found.setdefault(queue, {})[state] = depth
        return [_queue(name, found[name]) for name in sorted(found)]

    def _rate(self, ended: int) -> float | None:
        now = self._clock()
        if self._ended and ended < self._ended[-1][1]:  # a partition was dropped, and its count with it
            self._ended.clear()
        self._ended.append((now, ended))
        while len(self._ended) > 2 and self._ended[1][0] <= now - SPAN:
            self._ended.popleft()
        then, before = self._ended[0]
        return (ended - before) / (now - then) if now > then else None


def _alike(rows: list[Row]) -> list[Row]:
    """Return one row for all failures with the same kind and error: the latest, with their number."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["kind"], error_name(row["error_code"], None, row["error"])), []).append(row)
    return [
        same[0] if len(same) == 1 else same[0] | {"error": f"{len(same)} failed: {same[0]['error']}"}
        for same in found.values()
    ]


def _retrying(group: Row) -> Row:
    """Return a row of the failures panel for retrying jobs with the same kind and code."""
    many = f"{group['jobs']:,} retrying: " if group["jobs"] > 1 else "retrying: "
    error = many + " ".join(each for each in (given_code(group["code"]), group["error"]) if each)
    return {"id": group["job"], "kind": group["kind"], "queue": group["queue"], "error_code": None, "error": error,
            "ago": 0.0, "next_in": group["next_in"]}  # fmt: skip


def _queue(name: str, parts: dict[str, Row]) -> Row:
    gate = parts.get("gate", {})
    row: Row = {"queue": name, "oldest": None, "paused": False, "paused_by": None, "reason": None, "most": None} | {
        "paused": bool(gate.get("paused")),
        "paused_by": gate.get("paused_by"),
        "reason": gate.get("reason"),
        "most": gate.get("max_running"),
    }
    for state in _STATES:
        depth = parts.get(state)
        row[state] = int(depth["jobs"]) if depth else 0
        row[f"{state}_capped"] = bool(depth and depth["capped"])
    ready = parts.get("ready")
    row["oldest"] = float(ready["oldest"]) if ready else None
    return row
