"""What a worker without a database declares about its kinds to the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.handlers._remote import messages as m
from jobherd.workers.run.declaration import policy_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._define.handler import AnyHandler


def declared(handlers: Mapping[str, AnyHandler]) -> list[m.KindPolicy]:
    """Return what Hello says about the kinds.

    Timeouts are left out: the supervisor of this host enforces them. With a timeout, the gateway
    would give the job away at the very moment at which this host ends it and reports why.
    """
    return [_declared(handler) for handler in handlers.values()]


def _declared(handler: AnyHandler) -> m.KindPolicy:
    policy = handler.policy
    base, factor, jitter, cap = policy_of(handler).backoff
    return m.KindPolicy(
        kind=handler.kind,
        queue=policy.queue,
        max_attempts=policy.max_attempts,
        max_crashes=policy.max_crashes,
        backoff_base_seconds=base,
        backoff_factor=factor,
        backoff_jitter=jitter,
        backoff_max_seconds=cap,
        keep_completed_days=policy.keep_completed_days,
        keep_failed_days=policy.keep_failed_days,
        sealed=bool(policy.encrypt),
        priority=policy.priority,
        max_running=policy.max_running or 0,
        redact=policy.redact,
    )
