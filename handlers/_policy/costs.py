"""Costs and flags of jobs: the resources they need from a host.

A cost is an amount of a named resource of a host: `{"memory_mb": 900}`. A flag is a label of a
kind: `"gpu"`. Jobherd gives them no meaning of its own; users do. Values are checked where they are
written. Nothing here uses a database.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from jobherd.handlers._policy.names import shown

_NAME: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,62}")


def check_name(value: object, *, field: str) -> str:
    """Return `value` if it is a valid name of a resource or flag, or raise ValueError.

    >>> check_name("memory_mb", field="cost")
    'memory_mb'
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        message = (
            f"{field}: {value!r} is not a name like 'memory_mb': use lower-case letters, digits and _ . - , "
            "at most 63 characters"
        )
        raise ValueError(message)
    return value


def check_amounts(value: object, *, field: str) -> dict[str, float]:
    """Return amounts by name if they are finite numbers >= 0.

    Raises TypeError or ValueError naming the field.

    >>> check_amounts({"memory_mb": 900}, field="cost")
    {'memory_mb': 900.0}
    """
    if not isinstance(value, Mapping):
        message = f'{field} must be a dict of amounts, like {{"memory_mb": 900}}, not {shown(value)}'
        raise TypeError(message)
    found: dict[str, float] = {}
    for name, amount in value.items():
        check_name(name, field=field)
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not math.isfinite(amount) or amount < 0:
            message = f"{field}[{name!r}] must be a number of 0 or more, not {amount!r}"
            raise ValueError(message)
        found[name] = float(amount)
    return found


def check_names(value: object, *, field: str) -> tuple[str, ...]:
    """Return names as a tuple, or raise TypeError or ValueError naming the field.

    >>> check_names(["gpu"], field="flags")
    ('gpu',)
    """
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        message = f'{field} takes names, like ("gpu",), not {value!r}'
        raise TypeError(message)
    return tuple(check_name(one, field=field) for one in value)
