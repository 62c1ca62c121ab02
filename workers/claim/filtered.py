"""A claimer that does not take every job: it asks before each claim what it may take, and claims under conditions.

Only where somebody restricts claims does a child have this one; all others pay nothing for it. What has ended is written before the
hooks are asked, for they are user code and may take their time; and before room is reckoned, for it gives room. Jobs that this child may
not take are somebody else's: news that found it unable is passed on, once. Where there is a budget, whoever has given room back looks
himself who fits, and calls the next one as long as there is more: so nobody needs to ask again and again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import psycopg

from jobherd import sql
from jobherd.workers.claim.admission import REST, Admission, Narrowing
from jobherd.workers.claim.claimer import Claimer
from jobherd.workers.database.connection import UNKNOWN_FUNCTION, is_away
from jobherd.workers.ipc.pipes import MoreWork, Problem, send

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.database.connection import Row
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.run.hooks import Caller

_log = logging.getLogger("jobherd.hooks")


_BY_HEAD: Final = frozenset({"claim_job", "claim_jobs"})
"""Statements that have chosen a queue before they look at its jobs."""


class FilteredClaimer(Claimer):
    """Claims that are narrowed."""

    def __init__(self, context: ChildContext, handlers: Mapping[str, AnyHandler], hooks: Caller, **parts: Any) -> None:
        super().__init__(context, handlers, hooks, **parts)
        settings = context.spec.settings
        self._budgeted = bool(settings.budget)
        self._admission = Admission(hooks, handlers, settings.budget, settings.budget_patience)
        for problem in self._admission.too_large():
            send(context.spec.report, Problem(problem))
        self._narrowing: Narrowing | None = None
        self._failing = False
        self._passed_on = -1

    def leave(self) -> None:
        super().leave()
        if self._budgeted:
            send(self._spec.report, MoreWork())  # the room of the last claim is nobody's yet

    def _claim(self, avoided: Sequence[str], *, rested: bool) -> list[JobRow]:
        if not avoided:  # the first of a turn over the queues
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
            if not own or (is_away(problem) and problem.sqlstate != UNKNOWN_FUNCTION):
                raise
            _log.error("a condition of before_claim is refused: %s", " ".join(str(problem).split()))
            self._narrowing, self._failing = None, True
            return []

    def _settle_apart(self) -> None:
        # Room is given back, or may be: a sibling may fit in beside us.
        self._woken = self._woken or (self._budgeted and bool(self._in_flight.unsettled))
        super()._settle_apart()

    def _send_claim(self, by: str, claim: Mapping[str, object], *, eager: bool) -> list[Row]:
        if not self._budgeted:
            return super()._send_claim(by, claim, eager=eager)
        return self._session.run_in_one(("lock_budget", {"supervisor": self._spec.supervisor}), (by, claim), eager=eager)

    def narrow(self, by: str, claim: dict[str, object]) -> tuple[str, dict[str, object]]:
        narrowing = self._narrowing
        if narrowing is None or not narrowing.conditions:
            return by, claim
        conditions, parameters = narrowing.conditions, narrowing.parameters
        if by == "claim_more":
            joining = self._admission.joining()
            conditions = tuple(name for name in conditions if name != "within_budget") + joining.conditions
            parameters = parameters | joining.parameters
        elif by in _BY_HEAD and self._budgeted and not narrowing.hooked:
            conditions += ("near_head",)  # what a hook lets through may stand anywhere
        return sql.narrow(by, *conditions), claim | {"narrowed": True} | parameters

    def _work_table(self) -> bool:
        if self._tables is None:
            return False
        self._settle_apart()
        self._narrowing = self._admission.ask()  # anew: the claim before may have taken what there was room for
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
            longest = self._settings.poll  # what it says of itself fills the log
        elif hooked:
            longest = REST
        elif longest < self._settings.poll:
            # What does not fit is waited for until somebody calls who has given room back, not looked for four times a second.
            longest = self._settings.poll
        if self._woken and hooked and self._passed_on != epoch:
            # Once for each news: two children that both may not would call each other for ever.
            self._passed_on = epoch
            send(self._spec.report, MoreWork())
        super()._idle(epoch, longest)
