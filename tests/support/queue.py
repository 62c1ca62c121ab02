"""Acts as supervisors, children and producers on a database: runs the product's statements without its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.rows import dict_row

from jobherd import sql
from jobherd.handlers._enqueue.options import Options
from jobherd.workers.database.wire import Wire
from jobherd.workers.job.row import claimed_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING = Options().parameters()
PER_JOB = {
    "delays": "delay",
    "results": "result",
    "codes": "code",
    "errors": "error",
    "tracebacks": "traceback",
    "ran": "ran",
    "ago": "ago",
    "usages": "usage",
    "progresses": "progress",
    "post_mortems": "post_mortem",
    "crashes": "crashed",
    "keeps": "keep",
    "logs": "log",
}


@dataclass(frozen=True)
class JobRow:
    id: int
    token: int | None
    queue: str
    attempts: int
    good_for: float | None


def jobs_of(answer: psycopg.Cursor[Any]) -> list[dict[str, Any]]:
    """Return the jobs in the answer of any claiming statement, each as a dict of its fields."""
    return [job._asdict() for job in claimed_jobs(answer.fetchall())]


class Child:
    """A registered child with its own session."""

    def __init__(self, queue: Queue, supervisor: int, incarnation: int) -> None:
        self.queue, self.supervisor, self.incarnation = queue, supervisor, incarnation
        self.connection = psycopg.connect(queue.dsn, autocommit=True)
        queue.opened.append(self.connection)
        row = self.connection.execute(
            queue.text("lease/register_child"),
            {
                "supervisor": supervisor,
                "incarnation": incarnation,
                "slot": 0,
                "kind": "worker",
                "pid": 1,
                "pid_started": 1,
            },
        ).fetchone()
        assert row is not None
        self.id = row[0]
        self.connection.execute(queue.text("session/force_index_plans"), {"local": False})

    def parameters(self, wanted: int, served: list[str] | None = None) -> dict[str, Any]:
        return {
            "supervisor": self.supervisor,
            "child": self.id,
            "wanted": wanted,
            "served": served,
            "turns": None,
            "tiers": None,
            "avoided": None,
            "short": None,
            "kinds": None,
            "shares": None,
        }

    def claim_raw(self, wanted: int, served: list[str] | None = None) -> list[dict[str, Any]]:
        return jobs_of(self.connection.execute(self.queue.text("claim/claim_jobs"), self.parameters(wanted, served)))

    def claim(self, wanted: int, served: list[str] | None = None) -> list[JobRow]:
        rows = self.claim_raw(wanted, served)
        return [
            JobRow(row["id"], row["token"], row["queue"], row["attempts"], row["good_for"])
            for row in rows
            if row["id"] is not None
        ]

    def settlement(self, token: int | None, ids: list[int], outcome: str, **common: object) -> dict[str, Any]:
        """Return the parameters of settle_jobs.sql."""
        parameters: dict[str, Any] = {name: [common.get(key)] * len(ids) for name, key in PER_JOB.items()}
        parameters["ran"] = [common.get("ran", 1.0)] * len(ids)
        return parameters | {
            "child": self.id,
            "token": token,
            "ids": ids,
            "outcomes": [outcome] * len(ids),
            "ran_on": "host/1",
        }

    def settle(self, token: int | None, ids: list[int], outcome: str, **common: object) -> list[int]:
        parameters = self.settlement(token, ids, outcome, **common)
        return [row[0] for row in self.connection.execute(self.queue.text("settle/settle_jobs"), parameters).fetchall()]

    def release(self, *, cleared: list[int] | None = None) -> list[int]:
        """Requeue the jobs of this child, as after its death; return their ids.

        `cleared`: tokens of claims of which a job has started, if it crashed.
        """
        parameters = {
            "supervisor": self.supervisor,
            "incarnation": self.incarnation,
            "cleared": cleared,
            "error": "it crashed",
        }
        return [
            row[0]
            for row in self.queue.connection.execute(self.queue.text("recover/requeue_child"), parameters).fetchall()
        ]


class Line:
    """A session for recording outcomes that does not reconnect; it counts the exchanges."""

    def __init__(self, connection: psycopg.Connection[Any], child: int) -> None:
        self.child, self.wire, self.exchanges, self.sessions = child, Wire(connection, "jobherd", prepared=True), 0, 1

    def run(self, statement: str, parameters: Mapping[str, object], *, patient: bool = False) -> list[tuple[Any, ...]]:
        self.exchanges += 1
        return self.wire.exchange((statement, parameters))[0]

    def run_both(
        self, first: str, before: Mapping[str, object], second: str, after: Mapping[str, object]
    ) -> tuple[list[tuple[Any, ...]] | psycopg.Error, list[tuple[Any, ...]] | psycopg.Error]:
        self.exchanges += 1
        one, two = self.wire.exchange_each((first, before), (second, after))
        return one, two


class Supervisor:
    """A registered supervisor."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        row = queue.connection.execute(
            queue.text("lease/register_supervisor"),
            {"host": "test", "machine": "test", "pid": 1, "pid_started": 1, "version": "0", "lease": 600.0},
        ).fetchone()
        assert row is not None
        self.id = row[0]
        self.children = 0

    def child(self) -> Child:
        self.children += 1
        return Child(self.queue, self.id, self.children)

    def reclaim(
        self, *, dead: list[int] | None = None, lease: float = 15.0, patient: bool = True, clock: float | None = None
    ) -> tuple[int, int]:
        row = self.queue.connection.execute(
            self.queue.text("recover/reclaim_supervisors"),
            {"supervisor": self.id, "dead": dead or [], "lease": lease, "patient": patient, "clock": clock},
        ).fetchone()
        assert row is not None
        return row[0], row[1]


class Queue:
    """The operations of a test on the queue."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.opened: list[psycopg.Connection[Any]] = [self.connection]
        self._supervisor: Supervisor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.opened:
            connection.close()

    def text(self, name: str) -> str:
        return sql.load(name)

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def supervisor(self) -> Supervisor:
        return Supervisor(self)

    def child(self) -> Child:
        if self._supervisor is None:
            self._supervisor = self.supervisor()
        return self._supervisor.child()

    def enqueue(self, kind: str, payload: str = "{}", **options: object) -> int:
        rows = self.connection.execute(
            self.text("enqueue/enqueue_jobs"), {**NOTHING, "kind": kind, "payloads": [payload], **options}
        ).fetchall()
        return rows[0][0]

    def enqueue_many(self, kind: str, count: int, **options: object) -> list[int]:
        payloads = [f'{{"n": {number}}}' for number in range(count)]
        rows = self.connection.execute(
            self.text("enqueue/enqueue_jobs"), {**NOTHING, "kind": kind, "payloads": payloads, **options}
        ).fetchall()
        return [row[0] for row in rows]

    def job(self, number: int) -> dict[str, Any]:
        row = (
            self.connection.cursor(row_factory=dict_row)
            .execute(self.text("observe/show_job"), {"id": number})
            .fetchone()
        )
        assert row is not None, f"no job {number}"
        return row

    def state(self, number: int) -> str | None:
        rows = self.run("SELECT state FROM jobherd.jobs WHERE id = %s", number)
        assert len(rows) <= 1, rows
        return rows[0][0] if rows else None

    def states(self, numbers: list[int]) -> list[str | None]:
        return [self.state(number) for number in numbers]

    def count(self, table: str) -> int:
        return self.run(f"SELECT count(*) FROM jobherd.{table}")[0][0]

    def cancel(self, number: int) -> str | None:
        return self.run("SELECT jobherd.cancel(%s)", number)[0][0]

    def retry(self, number: int) -> str | None:
        return self.run("SELECT jobherd.retry(%s)", number)[0][0]

    def orphans(self) -> list[int]:
        return [row[0] for row in self.run(self.text("recover/requeue_orphans"))]

    def promote(self) -> int:
        return self.connection.execute(self.text("maintenance/promote_due"), {"most": 1000}).rowcount
