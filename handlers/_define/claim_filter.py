"""What a child may say it will take: the filter that a `before_claim` hook returns.

A value, checked where it is made. How it narrows a claim is the worker's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg.sql import Composable

from jobherd.handlers._policy.costs import check_amounts, check_names
from jobherd.handlers._policy.policy import check_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """What a `before_claim` hook lets its child claim: jobs for which everything that is given holds.

    kinds: their kinds; default all.
    max_cost: the most that a job may cost, by resource; what is not named is not looked at; default nothing.
    forbidden_flags: flags that their kinds do not have; default none.
    condition: SQL about the waiting job, text or from `psycopg.sql`, that is true for it: `kind`, `queue`, `priority`, `payload` (json),
        `attempts`, `created_at`, `run_at` are its columns; default none.
    parameters: for the `%(name)s` in it: numbers, texts, truth values, None, and lists of them. What changes from claim to claim belongs
        here and not into the text, which is prepared once.

    Raises TypeError or ValueError that name the field and the remedy.

    >>> Only(kinds=["image:thumbnail"], max_cost={"memory_mb": 500})
    Only(kinds=('image:thumbnail',), max_cost={'memory_mb': 500.0}, forbidden_flags=(), condition=None, parameters={})
    """

    kinds: Sequence[str] | None = None
    max_cost: Mapping[str, float] = field(default_factory=dict)
    forbidden_flags: Sequence[str] = ()
    condition: str | Composable | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str):
            message = f"kinds takes names, like [{self.kinds!r}], not one text"
            raise TypeError(message)
        if self.kinds is not None:
            object.__setattr__(self, "kinds", tuple(check_kind(kind) for kind in self.kinds))
        object.__setattr__(self, "max_cost", check_amounts(self.max_cost, field="max_cost"))
        object.__setattr__(self, "forbidden_flags", check_names(self.forbidden_flags, field="forbidden_flags"))
        _check_condition(self.condition, self.parameters)


def _check_condition(condition: object, parameters: object) -> None:
    if condition is not None and not isinstance(condition, str | Composable):
        message = f"condition takes SQL as text or from psycopg.sql, not a {type(condition).__name__}"
        raise TypeError(message)
    if not isinstance(parameters, Mapping):
        message = f'parameters takes a dict, like {{"repos": [1, 2]}}, not a {type(parameters).__name__}'
        raise TypeError(message)
    if parameters and condition is None:
        message = "parameters are those of a condition: give one"
        raise ValueError(message)
