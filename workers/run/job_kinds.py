"""The settings of each job kind that every attempt reads, looked up once when the worker starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._define.hook_calls import JobHooks
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.run.hooks import HookCaller


class JobKind(NamedTuple):
    """A kind of jobs, with the parts of its policy that each attempt reads."""

    handler: AnyHandler
    number: int
    """Number of the kind on the status board."""
    timeout: float
    max_attempts: int
    takes_job: bool
    exclusive: bool
    transactional: bool
    keep_completed: int
    keep_failed: int
    """Days."""
    hooks: JobHooks | None
    takes_bytes: bool
    encrypts: bool
    """Payloads, results, errors and logs of the kind are encrypted."""
    encrypts_only: bool
    """Payloads that are not encrypted are rejected."""
    hides_errors: bool
    """Log lines must not quote its errors: parts of the payload are encrypted or redacted."""
    plain: bool
    """A call needs the payload and nothing else, so `short_jobs.py` can run its jobs."""


def most_attempts(kind: JobKind, row: JobRow) -> int:
    """Return how many attempts a job has."""
    return kind.max_attempts if row.max_attempts is None else row.max_attempts


def job_kinds(handlers: Mapping[str, AnyHandler], numbers: Mapping[str, int], hooks: HookCaller) -> dict[str, JobKind]:
    """Return the kinds of these handlers. numbers: on the status board."""
    return {kind: _job_kind(one, numbers.get(kind, 0), hooks.of_kind(kind)) for kind, one in handlers.items()}


def _job_kind(handler: AnyHandler, number: int, hooks: JobHooks | None) -> JobKind:
    policy, signature = handler.policy, handler.signature
    plain = not (
        policy.batch is not None
        or signature.takes_job
        or signature.takes_bytes
        or signature.is_async
        or policy.exclusive
        or policy.transactional
        or policy.encrypt
        or hooks is not None
    )
    return JobKind(
        handler,
        number,
        policy.timeout,
        policy.max_attempts,
        signature.takes_job or hooks is not None,
        policy.exclusive,
        policy.transactional,
        policy.keep_completed_days,
        policy.keep_failed_days,
        hooks,
        signature.takes_bytes,
        bool(policy.encrypt),
        policy.encrypt == "only",
        bool(policy.encrypt or policy.redact),
        plain,
    )
