"""Answers a worker's statements through its uplink, as `database/wire.py` does through a database.

The statements that a worker sends are few: a claim becomes a Ready, a settlement becomes Results.
A claim waits for its TaskBatch only for a moment: without one it is empty and its Ready stays open.
The worker then rests as it does with a database, and its socket ends the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from jobherd.handlers._remote import messages as m
from jobherd.workers.remote.results import results_of
from jobherd.workers.remote.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.workers.database.wire import Request, Rows
    from jobherd.workers.remote.connection import UplinkConnection

MOMENT: Final = 0.005
"""Seconds that a claim waits for jobs before the worker rests. A round trip to a gateway takes less,
if jobs are ready. Without the wait, each claim would count as an empty one.
"""
_ANSWERS: Final[dict[str, Rows]] = {
    # Hello has declared the kinds.
    "lease/register_kinds": [],
    "lease/declare_limits": [],
    "lease/declare_rates": [],
    "observe/show_shard": [(0,)],
    "schedule/declare_schedules": [],
    "schedule/postpone_declarations": [],
    "wake/notify_workers": [],
    "recover/find_child": [(True,)],
    "maintenance/count_dead_rows": [("ready", 0, 0)],
    # A batch that is not full: the jobs of a claim have one token, and another Ready gets another.
    "claim/claim_more": [],
}
"""What other statements of a worker return. They concern the database, or are the gateway's."""


class RemoteWire:
    """The exchanges over one connection to the uplink.

    kinds, queues, lease: what each Ready asks for.
    held: the jobs of each claim whose results are not confirmed, by token. It is kept up to date.
    on_held: called when `held` has changed, before a job of it can start.
    """

    def __init__(
        self,
        connection: UplinkConnection,
        held: dict[int, list[int]],
        on_held: Callable[[], None],
        *,
        kinds: Sequence[str],
        queues: Sequence[str],
        lease: float,
    ) -> None:
        self.changed = 0
        self.is_pending = False
        self._connection = connection
        self._held, self._on_held = held, on_held
        self._kinds, self._queues, self._lease = kinds, queues, lease
        self._ready = 0
        """Number of the last Ready."""
        self._is_open = False
        """Whether it is not answered."""
        self._tasks: list[m.Task] | None = None
        """Its answer, if that came before it was asked for."""
        self._batch = 0
        """Number of the last ResultBatch."""
        self._ack: m.ResultAck | None = None
        """Its answer."""
        self._sent: tuple[int, list[int]] = (0, [])
        """Token and jobs of that batch."""

    @property
    def has_arrived(self) -> bool:
        """Whether a claim would return at once: there are tasks, or the uplink must be found again."""
        return self._tasks is not None or self._connection.closed

    def fileno(self) -> int:
        """Return the file over which tasks come."""
        return self._connection.fileno()

    def exchange(self, *requests: Request, eager: bool = False) -> list[Rows]:
        """Carry out statements and return the rows of each. Raises psycopg.Error."""
        del eager
        return [self._carry_out(*request) for request in requests]

    def exchange_urgent(self, name: str, parameters: Mapping[str, object]) -> Rows:
        """Carry out one statement and return its rows. Raises psycopg.Error."""
        return self._carry_out(name, parameters)

    def exchange_each(self, first: Request, second: Request) -> list[Rows | psycopg.Error]:
        """Settle and claim at the same time, and return the rows of both. Raises psycopg.Error."""
        self._report(first[1])
        self._ask(second[1])
        settled = self._confirmed()
        return [settled, self._claimed()]

    def exchange_ahead(self, first: Request, second: Request) -> Rows | psycopg.Error:
        """Claim and settle, and return the rows of the claim. Raises psycopg.Error."""
        self._report(second[1])
        self._ask(first[1])
        self.is_pending = True
        return self._claimed()

    def receive_pending(self) -> Rows | psycopg.Error:
        """Return the rows of the settlement that `exchange_ahead` has sent. Raises psycopg.Error."""
        self.is_pending = False
        return self._confirmed()

    def _carry_out(self, name: str, parameters: Mapping[str, Any]) -> Rows:
        if name in _ANSWERS:
            return _ANSWERS[name]
        if name in {"settle/settle_jobs", "settle/settle_completed", "settle/settle_members"}:
            self._report(parameters)
            return self._confirmed()
        if name.startswith("claim/"):
            self._ask(parameters)
            return self._claimed()
        message = f"{name} needs a database, and this worker has none"
        raise psycopg.ProgrammingError(message)

    # -- results

    def _report(self, settlement: Mapping[str, Any]) -> None:
        self._batch += 1
        self._sent, self._ack = (settlement["token"], settlement["ids"]), None
        reports = results_of(settlement)
        for _, progress in reports:
            if progress is not None:
                self._connection.send(m.WorkRequest(progress=progress))
        batch = m.ResultBatch(number=self._batch, results=[result for result, _ in reports])
        self._connection.send(m.WorkRequest(results=batch))

    def _confirmed(self) -> Rows:
        """Wait until the gateway has recorded the results, and return the ids of those that it has."""
        while self._ack is None:
            self._receive(None)
        token, jobs = self._sent
        if left := [job for job in self._held.pop(token, ()) if job not in jobs]:
            self._held[token] = left
        self._on_held()
        lost = {refusal.task.task_id for refusal in self._ack.refusals}
        return [(job,) for job in jobs if job not in lost]

    # -- tasks

    def _ask(self, claim: Mapping[str, Any]) -> None:
        if self._is_open or self._tasks is not None:
            return
        self._ready += 1
        self._is_open = True
        ready = m.Ready(
            number=self._ready,
            kinds=self._kinds,
            queues=self._queues,
            count=claim["wanted"],
            lease_seconds=self._lease,
        )
        self._connection.send(m.WorkRequest(ready=ready))

    def _claimed(self) -> Rows:
        while self._is_open and self._receive(MOMENT):
            pass
        tasks, self._tasks = self._tasks, None
        return [tuple(row_of(task)) for task in tasks or ()]

    def _receive(self, timeout: float | None) -> bool:
        """Take what has arrived. Return False if nothing did in that time."""
        response = self._connection.receive(timeout)
        if response is None:
            return False
        while response is not None:
            self._take(response)
            # Otherwise a worker would rest although its tasks are in the buffer.
            response = self._connection.next_received()
        return True

    def _take(self, response: m.WorkResponse) -> None:
        match response.WhichOneof("event"):
            case "tasks" if response.tasks.ready == self._ready:
                self._is_open, self._tasks = False, list(response.tasks.tasks)
                self._held[self._tasks[0].claim] = [task.id for task in self._tasks]
                self._on_held()
            case "result_ack" if response.result_ack.up_to == self._batch:
                self._ack = response.result_ack
