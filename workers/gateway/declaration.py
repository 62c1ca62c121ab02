"""What a remote worker declares about its kinds, as the database stores it.

The declaration of a kind holds for all its jobs. So it counts only if the client may run the kind,
and is not limited to the jobs of some tenants. An entry that has only a name says that a worker for
the kind exists, and changes nothing that is stored. The module sends no statement.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway.access import narrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.results import KindRules

_MOST_DAYS: Final = 36_500


class Declaration(NamedTuple):
    """The parameters of remote/register_kinds and of lease/declare_limits."""

    kinds: dict[str, list[object]]
    limits: dict[str, list[object]]


def declaration_of(
    declared: Iterable[m.KindPolicy], rules: Mapping[str, KindRules], principal: Principal
) -> Declaration | None:
    """Return what to store, or None.

    rules: the checked rules of each declared kind.
    """
    allowed = {one.kind: one for one in declared if narrow((one.kind,), principal.kinds) is not None}
    if principal.tenants or not allowed:
        return None
    policies = [rules[kind].policy for kind in allowed]
    only_names = [one == m.KindPolicy(kind=kind) for kind, one in allowed.items()]
    limits = [
        (kind, rules[kind].policy.max_running)
        for kind, only_name in zip(allowed, only_names, strict=True)
        if not only_name
    ]
    kinds: dict[str, list[object]] = {
        "names": list(allowed),
        "queues": [one.queue for one in policies],
        "priorities": [one.priority for one in policies],
        "max_attempts": [one.max_attempts for one in policies],
        "max_crashes": [one.max_crashes for one in policies],
        "keep_completed": [_days(one, "keep_completed_days") for one in allowed.values()],
        "keep_failed": [_days(one, "keep_failed_days") for one in allowed.values()],
        "redacts": [json.dumps(one.redact) for one in policies],
        "only_names": list(only_names),
    }
    return Declaration(kinds, {"names": [kind for kind, _ in limits], "max_running": [most for _, most in limits]})


def _days(declared: m.KindPolicy, field: str) -> int | None:
    return min(getattr(declared, field), _MOST_DAYS) if declared.HasField(field) else None
