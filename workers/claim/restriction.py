"""Adds the conditions of hooks and budget to each claim, and wakes other workers for jobs it leaves.

The claimer asks its restriction before each claim and lets it add conditions, which
`claim_conditions.py` builds. A worker without hooks and budget has `Unrestricted`, and pays nothing.

Finished jobs are settled before the hooks are called, because hooks are user code and may be slow,
and before the budget is calculated, because a settlement frees budget. If this worker may not take
a job, it passes the wake on to another worker once. With a budget, a worker that frees resources
first tries to claim a job that fits, and wakes another worker as long as there is more. No worker
has to poll for free resources.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from jobherd import sql
from jobherd.handlers._define.hooks import before_claim
from jobherd.workers.claim.claim_conditions import HOOK_PAUSE, ClaimConditions, Narrowing
from jobherd.workers.database.errors import is_condition_wrong
from jobherd.workers.ipc.pipes import MoreWork, Problem, send

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.database.wire import Request
    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.run.hooks import HookCaller

_log = logging.getLogger("jobherd.hooks")

_BY_HEAD: Final = frozenset({"claim/claim_job", "claim/claim_jobs"})
"""Statements that choose a queue before they read its jobs."""


class Unrestricted:
    """Every claim is allowed, and gets no condition.

    exists: whether there is a restriction, so that the claimer must ask it.
    allows: whether anything may be claimed now.
    budgeted: whether there is a budget: running jobs occupy it.
    """

    exists = False
    allows = True
    budgeted = False

    def ask(self) -> None:
        """Update what may be claimed, by the hooks and the budget."""

    def narrow(self, statement: str, claim: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Add conditions to a claiming statement and its parameters."""
        return statement, claim

    def requests_before(self) -> tuple[Request, ...]:
        """Return the statements that must precede a claim in its transaction."""
        return ()

    def handle_error(self, _problem: psycopg.Error) -> bool:
        """Return whether an own condition caused the error of a claim. Then nothing is allowed any more."""
        return False

    def admits(self, _kind: str) -> bool:
        """Return whether records of that table store may be taken now."""
        return True

    def before_rest(self, _epoch: int, longest: float, *, woken: bool) -> float:
        """Return how long this worker may sleep, at most `longest` seconds unless its poll is longer.

        woken: a wake has not led to a claim yet.
        """
        del woken
        return longest

    def leave(self) -> None:
        """Wake another worker for the budget of the last claim: this worker makes no further claim."""


class Restricted(Unrestricted):
    """Hooks or a budget restrict the claims."""

    exists = True

    def __init__(self, spec: ChildSpec, handlers: Mapping[str, AnyHandler], hooks: HookCaller) -> None:
        settings = spec.settings
        self.budgeted = bool(settings.amounts)
        self._spec = spec
        self._conditions = ClaimConditions(hooks, handlers, settings.amounts, settings.budget_patience)
        for problem in self._conditions.too_large():
            send(spec.report, Problem(problem))
        self._narrowing: Narrowing | None = None
        self._failing = False
        self._passed_on = -1

    @property
    def allows(self) -> bool:  # type: ignore[override]  # a constant where there is no restriction
        """Whether anything may be claimed now."""
        return self._narrowing is not None

    def ask(self) -> None:
        self._narrowing = self._conditions.ask()
        self._failing = self._conditions.failing

    def narrow(self, statement: str, claim: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        narrowing = self._narrowing
        if narrowing is None or not narrowing.conditions:
            return statement, claim
        conditions, parameters = narrowing.conditions, narrowing.parameters
        if statement == "claim/claim_more":
            joining = self._conditions.joining()
            conditions = tuple(name for name in conditions if name != "within_budget") + joining.conditions
            parameters = parameters | joining.parameters
        elif statement in _BY_HEAD and self.budgeted and not narrowing.hooked:
            conditions += ("near_head",)  # Jobs that pass a hook may be anywhere in the queue.
        return sql.narrow(statement, *conditions), claim | {"narrowed": True} | parameters

    def requests_before(self) -> tuple[Request, ...]:
        return (("claim/lock_budget", {"supervisor": self._spec.supervisor}),) if self.budgeted else ()

    def handle_error(self, problem: psycopg.Error) -> bool:
        own = self._narrowing is not None and any(name.startswith("own_") for name in self._narrowing.conditions)
        if not own or not is_condition_wrong(problem):
            return False
        _log.error("PostgreSQL rejects a condition of before_claim: %s", " ".join(str(problem).split()))
        self._narrowing, self._failing = None, True
        return True

    def admits(self, kind: str) -> bool:
        return self._narrowing is not None and self._narrowing.admits(kind)

    def before_rest(self, epoch: int, longest: float, *, woken: bool) -> float:
        poll = self._spec.settings.poll
        hooked = self._narrowing is None or self._narrowing.hooked
        if self._failing:
            # A failing hook logs each time, so calling it more often would flood the log.
            longest = poll
        elif hooked:
            longest = HOOK_PAUSE
        elif longest < poll:
            # A job that does not fit waits for the wake of the worker that frees budget. This
            # worker does not look for it four times a second.
            longest = poll
        if woken and hooked and self._passed_on != epoch:
            # Once per epoch: otherwise two workers that may not take the job would wake each other
            # indefinitely.
            self._passed_on = epoch
            send(self._spec.report, MoreWork())
        return longest

    def leave(self) -> None:
        if self.budgeted:
            send(self._spec.report, MoreWork())  # No worker uses the budget of the last claim yet.


def restriction_of(spec: ChildSpec, handlers: Mapping[str, AnyHandler], hooks: HookCaller) -> Unrestricted:
    """Return the restriction of a worker: it has one only with a `before_claim` hook or a budget."""
    if hooks.hooks.at(before_claim) or spec.settings.amounts:
        return Restricted(spec, handlers, hooks)
    return Unrestricted()
