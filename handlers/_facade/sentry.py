"""Sends failures, transactions and cron check-ins to Sentry: `jobherd run --hooks jobherd.sentry`.

Needs `sentry-sdk` in the workers. Without `sentry_sdk.init(...)` in a module of handlers, the SDK is
initialized here from SENTRY_DSN. Must not change an outcome, and must not add payloads
to events: only local variables of the stack have them, if the SDK sends these.

* One event for a job that fails permanently; with JOBHERD_SENTRY_EVERY_ATTEMPT=1 one for each failed
  attempt. One for a process that died with its job.
* One transaction for each attempt, in the trace that the job carries.
* One check-in for each job of a schedule, with the schedule's timing. So Sentry creates the monitor.

Every event is flushed before the process exits: a worker ends by `os._exit`, and the SDK's thread
with it.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.integrations.logging import ignore_logger

from jobherd.handlers._define.hooks import after_job, before_job, middleware, on_child_start, on_death, on_failure
from jobherd.handlers._enqueue.default import default_client
from jobherd.handlers._enqueue.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobherd.handlers._run.job import Job
    from jobherd.handlers._values.outcome import Outcome

FLUSH: Final = 4.0
"""Seconds to send what is left when a process exits. Jobherd allows 5."""
EVERY_ATTEMPT: Final = "JOBHERD_SENTRY_EVERY_ATTEMPT"
_CHECKIN_STATUS: Final = {"completed": "ok", "failed": "error", "cancelled": "error"}

_scopes: Final[dict[int, Any]] = {}
"""The scope of each job that runs here, for its event."""
_monitors: Final[dict[str, dict[str, Any]]] = {}
"""Timing of each schedule that has run here."""


ignore_logger("jobherd.jobs")  # its lines say what the events say


def _initialize() -> None:
    if not sentry_sdk.is_initialized():
        sentry_sdk.init()


@on_child_start
def flush_at_exit() -> Iterator[None]:
    """Initialize the SDK in each worker, and send what is left when the worker exits."""
    _initialize()
    yield
    sentry_sdk.flush(timeout=FLUSH)


@before_job
def begin_checkin(job: Job) -> None:
    """Tell Sentry that the job of a schedule has started."""
    if job.schedule is not None:
        _checkin(job, "in_progress")


@middleware
def trace_attempt(job: Job, call_next: Callable[[], object]) -> object:
    """Run the attempt in its own scope and transaction."""
    with sentry_sdk.isolation_scope() as scope:
        _scopes[job.id] = scope
        describe(scope, job)
        transaction = sentry_sdk.continue_trace(
            _headers(job.trace_headers), op="queue.process", name=job.kind, source="task", origin="auto.queue.jobherd"
        )
        with sentry_sdk.start_transaction(transaction) as span:
            span.set_data("messaging.system", "jobherd")
            span.set_data("messaging.message.id", str(job.id))
            span.set_data("messaging.destination.name", job.queue)
            span.set_data("messaging.message.retry.count", job.attempt - 1)
            span.set_data("messaging.message.receive.latency", round(max(0.0, time.time() - job.run) * 1000))
            return call_next()


@on_failure
def send_event(job: Job, outcome: Outcome, exception: BaseException | None) -> None:
    """Send an event for a permanent failure, or for each failure."""
    if outcome.state != "failed" and not os.environ.get(EVERY_ATTEMPT):
        return
    with sentry_sdk.scope.use_isolation_scope(_scopes.get(job.id) or sentry_sdk.get_isolation_scope().fork()) as scope:
        describe(scope, job)
        scope.set_tag("jobherd.outcome", outcome.label)
        if exception is not None:
            sentry_sdk.capture_exception(exception)
        else:
            sentry_sdk.capture_message(outcome.error or f"{job.kind} failed", level="error")


@after_job
def end_checkin(job: Job, outcome: Outcome) -> None:
    """Tell Sentry how the job of a schedule has ended, and forget the job."""
    _scopes.pop(job.id, None)
    if job.schedule is not None and outcome.state in _CHECKIN_STATUS:
        _checkin(job, _CHECKIN_STATUS[outcome.state])


@on_death
def send_death(job: Job, post_mortem: dict[str, Any]) -> None:
    """Send an event for a process that died with its job. Runs in another process."""
    _initialize()
    with sentry_sdk.isolation_scope() as scope:
        describe(scope, job)
        scope.set_context("post_mortem", {name: value for name, value in post_mortem.items() if name != "stack"})
        scope.fingerprint = ["jobherd.death", job.kind, str(post_mortem.get("cause"))]
        sentry_sdk.capture_message(str(post_mortem["sentence"]), level="fatal")
    sentry_sdk.flush(timeout=FLUSH)


def describe(scope: Any, job: Job) -> None:
    """Add the job to a scope, without its payload."""
    scope.set_tag("jobherd.kind", job.kind)
    scope.set_tag("jobherd.queue", job.queue)
    scope.set_context(
        "job",
        {
            "id": job.id,
            "kind": job.kind,
            "queue": job.queue,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "crashes": job.crashes,
            "tenant": job.tenant,
            "schedule": job.schedule,
        },
    )


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a trace as Sentry reads them."""
    if not headers:
        return {}
    _, trace, span, flags = headers["traceparent"].split("-")[:4]
    return {"sentry-trace": f"{trace}-{span}-{int(flags, 16) & 1}", "baggage": headers.get("baggage", "")}


def _checkin(job: Job, status: str) -> None:
    name = job.schedule or ""
    if name not in _monitors:
        show_timing = Statement("schedule/show_timing", {"name": name}, _read_timing)
        _monitors[name] = default_client().run(show_timing, job.id)
    # Another worker may end what this one has begun: both name the job.
    number = uuid.uuid5(uuid.NAMESPACE_OID, f"jobherd:{name}:{job.id}").hex
    slug = re.sub(r"[^a-z0-9_-]+", "-", name)[:50]
    capture_checkin(slug, number, status, monitor_config=_monitors[name] or None)  # type: ignore[arg-type]


def _read_timing(rows: list[tuple[Any, ...]], _: tuple[str, ...]) -> dict[str, Any]:
    """Return the monitor of a schedule; empty if the schedule is gone."""
    if not rows:
        return {}
    cron, every, zone = rows[0]
    if cron is not None:
        return {"schedule": {"type": "crontab", "value": cron}, "timezone": zone}
    return {"schedule": {"type": "interval", "value": max(1, round(every / 60)), "unit": "minute"}}
