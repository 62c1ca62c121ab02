"""The queue of transactions for the database thread. Results that follow each other share a transaction."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from jobherd.workers.gateway.requests import Outcomes, Reported
from jobherd.workers.gateway.settlements import Result, batches_that_fit, plan_transaction

if TYPE_CHECKING:
    from jobherd.workers.gateway.requests import Request
    from jobherd.workers.gateway.state import State


class Queue:
    """The requests that wait, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[Request | Reported] = deque()

    def add(self, request: Request | Reported) -> None:
        """Add a request."""
        self._waiting.append(request)

    def take(self, state: State) -> list[Request]:
        """Return all that wait. Results that follow each other share a transaction."""
        taken: list[Request] = []
        while self._waiting:
            batches: list[Reported] = []
            for one in self._waiting:
                if not isinstance(one, Reported):
                    break
                batches.append(one)
            if not batches:
                taken.append(self._waiting.popleft())  # type: ignore[arg-type]
                continue
            del batches[batches_that_fit([len(each.finished) for each in batches]) :]
            for _ in batches:
                self._waiting.popleft()
            results = [
                Result(each.settle.session, ref.task, ref.claim, one.outcome.label == "ok" and one.log is None, one)
                for each in batches
                for ref, one in each.finished.items()
                if one is not None
            ]
            taken.append(Outcomes(batches, plan_transaction(state, results)))
        return taken
