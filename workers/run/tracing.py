"""Records a span for each attempt if the worker has set up an OpenTelemetry SDK.

See `handlers/_enqueue/tracing.py`. The spans use the same hooks that users write: one begins the span
before the user's hooks, one records a failure on it, and one ends it after the user's hooks. A
worker without an SDK has none of these hooks. That is decided once, after `on_child_start`: the SDK
must be set up there, because its threads do not survive a fork. This module must not change a job's
outcome: an exception of these hooks is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._define.definition_site import Made
from jobherd.handlers._define.hook_calls import JobHooks
from jobherd.handlers._define.hooks import Hook
from jobherd.handlers._enqueue.tracing import SYSTEM, read_trace, tracer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span, Tracer

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._run.job import Job
    from jobherd.handlers._values.outcome import Outcome

_NONE: Final = JobHooks((), (), (), ())


class Spans:
    """The open spans of running attempts: one, or several for a batch handler."""

    def __init__(self, own: Tracer) -> None:
        self._tracer = own
        self._open: dict[int, Span] = {}

    def around(self, hooks: JobHooks | None) -> JobHooks:
        """Return the hooks of a kind, with the span's hooks around them."""
        inner = _NONE if hooks is None else hooks
        return TracedHooks(
            (_hook("before_job", self.begin), *inner.before),
            inner.around,
            (_hook("on_failure", self.record), *inner.failed),
            (*inner.after, _hook("after_job", self.end)),
            self,
        )

    def ids(self, job: int) -> dict[str, object]:
        """Return the log fields of a job's span, or an empty dictionary if it has none."""
        span = self._open.get(job)
        own = None if span is None else span.get_span_context()
        if own is None or not own.is_valid:
            return {}
        return {"trace_id": f"{own.trace_id:032x}", "span_id": f"{own.span_id:016x}"}

    def begin(self, job: Job) -> Span:
        """Begin the span of an attempt, if it has not begun yet."""
        from opentelemetry.trace import Link, SpanKind, get_current_span  # noqa: PLC0415 - a process with spans has it

        span = self._open.get(job.id)
        if span is None:
            attributes: dict[str, Any] = {
                "messaging.system": SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": job.queue,
                "messaging.message.id": str(job.id),
                "jobherd.kind": job.kind,
                "jobherd.attempt": job.attempt,
                "jobherd.max_attempts": job.max_attempts,
            }
            parent = read_trace(job.trace)
            # OpenTelemetry's conventions want a link to the enqueue, and allow to be its child as well.
            enqueue = get_current_span(parent).get_span_context()
            links = [Link(enqueue)] if parent is not None and enqueue.is_valid else []
            span = self._open[job.id] = self._tracer.start_span(
                f"process {job.kind}", parent, SpanKind.CONSUMER, attributes, links
            )
        return span

    def record(self, job: Job, outcome: Outcome, exception: BaseException | None) -> None:
        """Record a failure on the span."""
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - as above

        span = self.begin(job)
        if exception is not None:
            span.record_exception(exception)
        span.set_attribute(
            "error.type", outcome.code or (type(exception).__name__ if exception is not None else outcome.label)
        )
        span.set_status(Status(StatusCode.ERROR, outcome.error))

    def end(self, job: Job, outcome: Outcome) -> None:
        """End the span."""
        span = self.begin(job)
        del self._open[job.id]
        span.set_attribute("jobherd.outcome", outcome.label)
        span.end()


class TracedHooks(JobHooks):
    """The hooks of a kind's jobs, called inside the span of the attempt.

    Spans that the handler creates become children of that span.
    """

    __slots__ = ("_spans",)
    _spans: Spans

    def __init__(
        self,
        before: tuple[Hook, ...],
        around: tuple[Hook, ...],
        failed: tuple[Hook, ...],
        after: tuple[Hook, ...],
        spans: Spans,
    ) -> None:
        super().__init__(before, around, failed, after)
        object.__setattr__(self, "_spans", spans)

    def call(self, handler: AnyHandler, job: Job, arguments: Mapping[str, Any]) -> object:
        """Call the handler inside its hooks and its span, with the baggage of the job."""
        from opentelemetry.context import attach, detach  # noqa: PLC0415 - as above
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415

        before = attach(set_span_in_context(self._spans.begin(job), read_trace(job.trace)))
        try:
            return super().call(handler, job, arguments)
        finally:
            detach(before)


def spans() -> Spans | None:
    """Return the recorder of this worker's spans, or None if the process has no SDK."""
    own = tracer()
    return None if own is None else Spans(own)


def _hook(event: str, function: Any) -> Hook:
    return Hook(
        event,
        function,
        frozenset(),
        3 if event == "on_failure" else 2 if event == "after_job" else 1,
        Made(__name__, __file__, 0),
    )
