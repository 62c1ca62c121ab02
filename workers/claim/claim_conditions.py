"""Translates the answers of `before_claim` hooks and the supervisor's budget into SQL conditions of a claim.

The conditions are names in `sql/queries/claim/conditions/` and their parameters. This module calls the hooks
and sends nothing to the database. `restriction.py` adds the conditions to the claim.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd import sql
from jobherd.handlers._define.claim_filter import Only
from jobherd.handlers._define.hooks import before_claim
from jobherd.handlers._values.outcome import Raised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.run.hooks import HookCaller

_log = logging.getLogger("jobherd.hooks")

HOOK_PAUSE: Final = 1.0
"""Seconds before a hook that did not allow every job is called again."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The conditions under which a claim may take a job."""

    conditions: tuple[str, ...] = ()
    """In the form that `sql.narrow` expects."""
    parameters: dict[str, Any] = field(default_factory=dict)
    hooked: bool = False
    """Whether a hook restricts the claim. Another worker may then take jobs that this worker must
    not.
    """
    costly: frozenset[str] = frozenset()
    """Kinds whose declared cost exceeds what the hooks allow. A single job of such a kind may cost
    less.
    """

    def admits(self, kind: str) -> bool:
        """Return whether records of the table store of that name may be taken.

        A hook's own SQL condition applies to the queue only, not to table stores.
        """
        only, excluded = self.parameters.get("only_kinds"), self.parameters.get("not_kinds")
        return (only is None or kind in only) and (excluded is None or kind not in excluded) and kind not in self.costly


class ClaimConditions:
    """Calls the `before_claim` hooks and translates their answers into conditions on a claim.

    Args:
        hooks: the hooks, with their child object.
        handlers: by kind. Their policies hold costs and flags.
        budget: resources of the supervisor, by name. Empty: no budget.
        patience: seconds after which room in the budget is reserved for a waiting job.
    """

    def __init__(
        self, hooks: HookCaller, handlers: Mapping[str, AnyHandler], budget: Mapping[str, float], patience: float
    ) -> None:
        self._caller = hooks
        self._hooks = hooks.hooks.at(before_claim)
        self._policies = {kind: handler.policy for kind, handler in handlers.items()}
        self._budget = budget
        self._patience = patience
        costs = {
            kind: dict(policy.cost)
            for kind, policy in self._policies.items()
            if not callable(policy.cost) and policy.cost
        }
        self._costs = orjson.dumps(costs).decode()
        self.failing = False
        """Whether the last call gave no usable answer: a hook raised, timed out or returned an
        invalid value.
        """

    def ask(self) -> Narrowing | None:
        """Return the restrictions of the next claim, or None if nothing may be claimed now."""
        answer = self._ask()
        if self._hooks:
            self._caller.forward_output()
        return answer

    def _ask(self) -> Narrowing | None:
        answers: list[Only] = []
        self.failing = False
        for hook in self._hooks:
            answer = self._caller.call(hook, lambda hook=hook: hook.call_with(self._caller.child))  # type: ignore[misc]
            match answer:
                case None | True:
                    continue
                case False:
                    return None
                case Only():
                    answers.append(answer)
                case Raised():
                    self.failing = True
                    return None
                case _:
                    _log.error("%r returned a %s: return None, False or Only(...)", hook, type(answer).__name__)
                    self.failing = True
                    return None
        try:
            return self._narrowing(answers)
        except (TypeError, ValueError) as problem:
            _log.error("the return value of before_claim cannot be used: %s", problem)
            self.failing = True
            return None

    def too_large(self) -> list[str]:
        """Return a sentence for each kind that exceeds the budget even if nothing else runs."""
        return [
            f"{kind} costs {name} {amount:g}, more than this supervisor's budget of "
            f"{self._budget[name]:g}: none of its jobs is run here"
            for kind, policy in self._policies.items()
            if not callable(policy.cost)
            for name, amount in policy.cost.items()
            if amount > self._budget.get(name, amount)
        ]

    def joining(self) -> Narrowing:
        """Return additional conditions for jobs that join a claim whose cost is already counted."""
        return Narrowing(("without_cost",), {"costs": self._costs}) if self._budget else Narrowing()

    def _narrowing(self, answers: Sequence[Only]) -> Narrowing:
        conditions: list[str] = []
        allowed = [set(one.kinds) for one in answers if one.kinds is not None]
        kinds = sorted(set.intersection(*allowed)) if allowed else None
        excluded = sorted(
            kind
            for kind, policy in self._policies.items()
            if any(not set(one.forbidden_flags).isdisjoint(policy.flags) for one in answers)
        )
        most: dict[str, float] = {}
        for one in answers:
            most |= {name: min(amount, most.get(name, amount)) for name, amount in one.max_cost.items()}
        parameters: dict[str, Any] = {
            "only_kinds": kinds,
            "not_kinds": excluded or None,
            "costs": self._costs,
            "room": orjson.dumps(most).decode(),
        }
        if kinds is not None:
            conditions.append("of_kinds")
        if excluded:
            conditions.append("not_of_kinds")
        if most:
            conditions.append("fits")
        own = False
        for number, one in enumerate(answers):
            if one.condition is None:
                continue
            own = True
            text = one.condition if isinstance(one.condition, str) else one.condition.as_string()
            conditions.append(sql.own_condition(text, f"own_{number}_", one.parameters))
            parameters |= {f"own_{number}_{name}": _sendable(value) for name, value in one.parameters.items()}
        hooked = bool(conditions)
        if self._budget:
            conditions.append("within_budget")
            parameters["budget"] = orjson.dumps(dict(self._budget)).decode()
            # A custom SQL condition may exclude jobs that this process cannot identify. Room
            # reserved for a job that no worker takes would stay unused.
            parameters["patience"] = None if own else self._patience
        return Narrowing(
            tuple(conditions),
            parameters,
            hooked,
            frozenset(kind for kind in self._policies if self._exceeds(kind, most)),
        )

    def _exceeds(self, kind: str, most: Mapping[str, float]) -> bool:
        cost = self._policies[kind].cost
        return not callable(cost) and any(amount > most.get(name, amount) for name, amount in cost.items())


def _sendable(value: object) -> object:
    return list(value) if isinstance(value, set | frozenset | tuple) else value
