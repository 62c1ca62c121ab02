"""The filter that a `before_claim` hook returns to restrict what its worker claims.

The filter is a value that is checked when it is created. The worker applies it to the claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg.sql import Composable

from jobherd.handlers._policy.costs import check_amounts, check_names
from jobherd.handlers._policy.names import check_kind
from jobherd.handlers._values.json_form import type_name, with_article


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """Restrict a claim to certain jobs; returned by a `before_claim` hook.

    All conditions must hold.

    Args:
        kinds: kinds that may be claimed. Default: all.
        max_cost: highest cost of a job for each named resource. Resources that are not named are
            not checked. Default: no limit.
        forbidden_flags: flags that the kind of a job must not have. Default: none.
        condition: SQL condition on the ready job, as text or from `psycopg.sql`. Its columns are
            `kind`, `queue`, `priority`, `payload` (json), `attempts`, `created_at` and `run_at`.
            Default: none.
        parameters: values for `%(name)s` in the condition: numbers, strings, booleans, None, and
            lists of these. Put values that change from claim to claim here and not into the
            condition, because the condition is prepared once.

    Raises:
        TypeError, ValueError: a field is invalid. The message names the field and the fix.

    Example:
        >>> Only(kinds=["image:thumbnail"], max_cost={"memory_mb": 500}).max_cost
        {'memory_mb': 500.0}
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
        message = f"condition takes SQL as text or from psycopg.sql, not {with_article(type_name(condition))}"
        raise TypeError(message)
    if not isinstance(parameters, Mapping):
        message = f'parameters takes a dict, like {{"repos": [1, 2]}}, not {with_article(type_name(parameters))}'
        raise TypeError(message)
    if parameters and condition is None:
        message = "parameters are those of a condition: give one"
        raise ValueError(message)
