"""A claimer that is restricted by `before_claim` hooks or a budget.

It adds conditions to each claim.

A worker uses this class only if its claims are restricted, so other workers pay nothing for it.
Finished jobs are settled before the hooks are called, because hooks are user code and may be slow,
and before the budget is calculated, because a settlement frees budget. If this worker may not take
a job, it passes the wake on to another worker once. With a budget, a worker that frees resources
first tries to claim a job that fits, and wakes another worker as long as there is more. No worker
has to poll for free resources.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import psycopg

from jobherd import sql
from jobherd.workers.claim.admission import REST, Admission, Narrowing
from jobherd.workers.claim.claimer import Claimer
from jobherd.workers.database.errors import is_condition_wrong
from jobherd.workers.ipc.pipes import MoreWork, Problem, send

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.database.opening import Row
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.run.hooks import Caller

_log = logging.getLogger("jobherd.hooks")


_BY_HEAD: Final = frozenset({"claim/claim_job", "claim/claim_jobs"})
"""Statements that choose a queue before they look at its jobs."""


class FilteredClaimer(Claimer):
    """A claimer that adds conditions to its claims."""

    def __init__(self, context: ChildContext, handlers: Mapping[str, AnyHandler], hooks: Caller, **parts: Any) -> None:
        super().__init__(context, handlers, hooks, **parts)
        settings = context.spec.settings
        self._budgeted = bool(settings.budget)
        self._admission = Admission(hooks, handlers, settings.amounts, settings.budget_patience)
        for problem in self._admission.too_large():
            send(context.spec.report, Problem(problem))
        self._narrowing: Narrowing | None = None
        self._failing = False
        self._passed_on = -1

    def leave(self) -> None:
        super().leave()
        if self._budgeted:
            send(self._spec.report, MoreWork())  # No worker uses the budget of the last claim yet.

    def _claim(self, avoided: Sequence[str], *, rested: bool) -> list[JobRow]:
        if not avoided:  # The first claim of a round over the queues.
            self._settle_apart()
            self._narrowing = self._admission.ask()
            self._failing = self._admission.failing
            self._tidy.worn = self._tidy.worn or self._hooks.torn
        if self._narrowing is None or self._tidy.worn:
            return []
        try:
            return super()._claim(avoided, rested=rested)
        except psycopg.Error as problem:
            own = any(name.startswith("own_") for name in self._narrowing.conditions)
            if not own or not is_condition_wrong(problem):
                raise
            _log.error("PostgreSQL rejects a condition of before_claim: %s", " ".join(str(problem).split()))
            self._narrowing, self._failing = None, True
            return []

    def _settle_apart(self) -> None:
        # A settlement frees budget, or may do so: another worker's job may now fit.
        self._woken = self._woken or (self._budgeted and bool(self._in_flight.unsettled))
        super()._settle_apart()

    def _send_claim(self, by: str, claim: Mapping[str, object], *, eager: bool) -> list[Row]:
        if not self._budgeted:
            return super()._send_claim(by, claim, eager=eager)
        return self._session.run_in_one(
            ("claim/lock_budget", {"supervisor": self._spec.supervisor}), (by, claim), eager=eager
        )

    def narrow(self, by: str, claim: dict[str, object]) -> tuple[str, dict[str, object]]:
        narrowing = self._narrowing
        if narrowing is None or not narrowing.conditions:
            return by, claim
        conditions, parameters = narrowing.conditions, narrowing.parameters
        if by == "claim/claim_more":
            joining = self._admission.joining()
            conditions = tuple(name for name in conditions if name != "within_budget") + joining.conditions
            parameters = parameters | joining.parameters
        elif by in _BY_HEAD and self._budgeted and not narrowing.hooked:
            conditions += ("near_head",)  # Jobs that pass a hook may be anywhere in the queue.
        return sql.narrow(by, *conditions), claim | {"narrowed": True} | parameters

    def _work_table(self) -> bool:
        if self._tables is None:
            return False
        self._settle_apart()
        self._narrowing = self._admission.ask()  # Ask again: the last claim may have used the remaining budget.
        self._failing = self._admission.failing
        self._tidy.worn = self._tidy.worn or self._hooks.torn
        return self._narrowing is not None and super()._work_table()

    def _admits(self, kind: str) -> bool:
        return self._narrowing is not None and self._narrowing.admits(kind)

    def _idle(self, epoch: int, longest: float) -> None:
        if self._tidy.worn:
            return
        hooked = self._narrowing is None or self._narrowing.hooked
        if self._failing:
            # A failing hook logs each time, so calling it more often would flood the log.
            longest = self._settings.poll
        elif hooked:
            longest = REST
        elif longest < self._settings.poll:
            # A job that does not fit waits for the wake of the worker that frees budget. This
            # worker does not look for it four times a second.
            longest = self._settings.poll
        if self._woken and hooked and self._passed_on != epoch:
            # Once per epoch: otherwise two workers that may not take the job would wake each other
            # indefinitely.
            self._passed_on = epoch
            send(self._spec.report, MoreWork())
        super()._idle(epoch, longest)
