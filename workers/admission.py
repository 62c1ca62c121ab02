"""Which jobs a child may claim now: what its `before_claim` hooks say, as conditions on the claim.

Here opinions become the names of conditions in `sql/queries/conditions/` and their parameters. It asks the hooks, it sends nothing. What
nobody restricts adds no condition.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import sql
from handlers._hooks import before_claim
from handlers._only import Only
from handlers._outcome import Raised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from handlers._handler import AnyHandler
    from workers.hooks import Caller

_log = logging.getLogger("jobherd.hooks")

REST: Final = 1.0
"""Seconds after which a hook that did not let everything through is asked again."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The conditions under which a claim may take a job."""

    conditions: tuple[str, ...] = ()
    """As `sql.narrow` takes them."""
    parameters: dict[str, Any] = field(default_factory=dict)

    def admits(self, kind: str) -> bool:
        """Return whether records of the store of that name may be taken. A condition in SQL is about the queue, and says nothing of it."""
        only = self.parameters.get("only_kinds")
        return (only is None or kind in only) and kind not in self.parameters.get("not_kinds", ())


class Admission:
    """Asks the `before_claim` hooks and says what their answers mean for a claim.

    hooks: with their child. handlers: by kind, for what they cost and their flags.
    """

    def __init__(self, hooks: Caller, handlers: Mapping[str, AnyHandler]) -> None:
        self._caller = hooks
        self._hooks = hooks.hooks.at(before_claim)
        self._policies = {kind: handler.policy for kind, handler in handlers.items()}
        self.failing = False
        """The last answer was no answer: a hook raised, hung, or returned what means nothing."""

    def ask(self) -> Narrowing | None:
        """Return how the next claim is narrowed, or None if nothing may be claimed now."""
        said: list[Only] = []
        self.failing = False
        for hook in self._hooks:
            answer = self._caller.call(hook, lambda hook=hook: hook.tell(self._caller.child))  # type: ignore[misc]
            match answer:
                case None | True:
                    continue
                case False:
                    return None
                case Only():
                    said.append(answer)
                case Raised():
                    self.failing = True
                    return None
                case _:
                    _log.error("%r returned a %s: return None, False or Only(...)", hook, type(answer).__name__)
                    self.failing = True
                    return None
        try:
            return self._narrowing(said)
        except (TypeError, ValueError) as problem:
            _log.error("what before_claim said cannot be used: %s", problem)
            self.failing = True
            return None

    def _narrowing(self, said: Sequence[Only]) -> Narrowing:
        conditions: list[str] = []
        parameters: dict[str, Any] = {}
        if any(one.kinds is not None for one in said):
            allowed = set.intersection(*(set(one.kinds) for one in said if one.kinds is not None))
            conditions.append("of_kinds")
            parameters["only_kinds"] = sorted(allowed)
        if excluded := sorted(kind for kind in self._policies if any(self._excludes(one, kind) for one in said)):
            conditions.append("not_of_kinds")
            parameters["not_kinds"] = excluded
        for number, one in enumerate(said):
            if one.condition is None:
                continue
            text = one.condition if isinstance(one.condition, str) else one.condition.as_string()
            conditions.append(sql.own_condition(text, f"own_{number}_", one.parameters))
            parameters |= {f"own_{number}_{name}": _sendable(value) for name, value in one.parameters.items()}
        return Narrowing(tuple(conditions), parameters)

    def _excludes(self, one: Only, kind: str) -> bool:
        policy = self._policies[kind]
        return not set(one.forbidden_flags).isdisjoint(policy.flags) or any(
            policy.cost.get(name, 0.0) > most for name, most in one.max_cost.items()
        )


def _sendable(value: object) -> object:
    return list(value) if isinstance(value, set | frozenset | tuple) else value
