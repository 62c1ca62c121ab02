"""Reads results of earlier nodes for the running job: `job.input` and `job.inputs`.

It uses the session of the jobs' transactions, since a handler may be interrupted in the middle. It
writes nothing, so no fencing token is needed: a worker that has lost its claim reads the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jobherd.handlers._run.inputs import InputError, Source
from jobherd.workers.run.transaction_messages import find_input_problem

if TYPE_CHECKING:
    from jobherd.handlers._run import inputs
    from jobherd.workers.run.transaction import Transactions


class Inputs:
    """What a worker's running job reads. It is the `jobherd.handlers._run.inputs.InputHost` of that job."""

    def __init__(self, transactions: Transactions, *, has_database: bool) -> None:
        self._transactions = transactions
        self._has_database = has_database

    def sources(self, job: inputs.Inputs, node: str, *, many: bool) -> list[Source]:
        """Return the nodes that the job waited for. many: no result is read."""
        self._check(job)
        asked: dict[str, object] = {"job": job.id, "flow": job.flow, "node": None if many else node}
        return [Source(*row) for row in self._transactions.steps.exchange(("steps/find_inputs", asked))]

    def page(self, job: inputs.Inputs, source: Source, past: int) -> list[tuple[int, str | None]]:
        """Return the next results of a node with many jobs."""
        self._check(job)
        rows = self._transactions.steps.exchange(("steps/list_inputs", {"flow": source.id, "past": past}))
        return [(item, result) for item, result in rows]

    def _check(self, job: inputs.Inputs) -> None:
        transactions = self._transactions
        running = transactions.executor.running
        problem = find_input_problem(
            has_database=self._has_database,
            in_thread=threading.current_thread() is not threading.main_thread() or transactions.is_forked,
            active=transactions.active,
            over=transactions.committed or running is None or (running.id, running.token) != (job.id, job.token),
        )
        if problem:
            raise InputError(problem)
