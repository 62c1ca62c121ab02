"""Traces, through the OpenTelemetry API if the process has set up an SDK: what both ends of a job need, and the span of an enqueue.

Nothing here imports OpenTelemetry by itself: whoever wants spans has imported it, and has told it of a provider, before there can be any.
So a process without costs one look into a dictionary for each enqueue, and one for a whole worker. This module sets up no SDK and
exports nothing; what goes with a job is its `traceparent`, in the form of W3C Trace Context.

The names of attributes are those of OpenTelemetry's conventions for messaging; what those have no word for begins with `jobherd.`.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from jobherd.handlers._enqueue.bulk import Chunk

SYSTEM: Final = "jobherd"

_known: tuple[object, Any] = (None, None)
"""The provider that was asked last, and its tracer."""


def tracer() -> Tracer | None:
    """Return what makes spans, or None if nobody has set up an SDK in this process."""
    global _known
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider):
        return None
    if provider is not _known[0]:
        _known = (provider, provider.get_tracer(SYSTEM))
    found: Tracer = _known[1]
    return found


def write_traceparent(span: Span) -> str | None:
    """Return a span as a `traceparent`, None if it belongs to no trace."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}" if context.is_valid else None


def read_traceparent(traceparent: str | None) -> Context | None:
    """Return the context that a `traceparent` stands for; None, the current one, for a job that has none."""
    if traceparent is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - whoever comes here has it

    _, trace_id, span_id, flags = traceparent.split("-")[:4]
    remote = trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(trace.NonRecordingSpan(remote))


def ids_of(traceparent: str | None) -> dict[str, object]:
    """Return what a log line says of a trace.

    >>> ids_of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    {'trace_id': '4bf92f3577b34da6a3ce929d0e0e4736', 'span_id': '00f067aa0ba902b7'}
    """
    return {} if traceparent is None else {"trace_id": traceparent[3:35], "span_id": traceparent[36:52]}


@contextmanager
def enqueueing(own: Tracer, chunk: Chunk) -> Iterator[tuple[Chunk, Callable[[list[int]], None]]]:
    """Give the chunk with the trace that its jobs belong to, and a function that is told their ids, inside the span of their enqueue.

    An error on the way is recorded on the span, and raised on.
    """
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - as above

    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "jobherd.kind": chunk.kind,
    }
    if chunk.options.queue is not None:
        attributes["messaging.destination.name"] = chunk.options.queue
    if len(chunk.texts) > 1:
        attributes["messaging.batch.message_count"] = len(chunk.texts)
    parent = read_traceparent(chunk.options.traceparent)
    with own.start_as_current_span(f"enqueue {chunk.kind}", parent, SpanKind.PRODUCER, attributes) as span:

        def tell(ids: list[int]) -> None:
            if len(ids) == 1:
                span.set_attribute("messaging.message.id", str(ids[0]))

        traceparent = write_traceparent(span) or chunk.options.traceparent
        yield replace(chunk, options=replace(chunk.options, traceparent=traceparent)), tell
