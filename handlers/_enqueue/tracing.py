"""Traces through the OpenTelemetry API: helpers for both ends, and the enqueue span.

There are traces only if the process has set up an SDK. This module does not import OpenTelemetry by
itself: spans are possible only if the application has imported it and set a provider. So a process
without it pays one dictionary lookup per enqueue, and one per worker. This module sets up no SDK
and exports nothing. A job carries its `traceparent` in W3C Trace Context format, with `tracestate` and
`baggage` after it if the producer has them.

Attributes are named by OpenTelemetry's semantic conventions for messaging. Other names begin with
`jobherd.`.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy.names import LONGEST_TRACE, TRACE_HEADERS, split_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

    from jobherd.handlers._enqueue.bulk import Chunk

SYSTEM: Final = "jobherd"

_known: tuple[object, Any] = (None, None)
"""The provider used last, and its tracer."""


def tracer() -> Tracer | None:
    """Return the tracer, or None if this process has not set up an SDK."""
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


def write_trace(context: Context) -> str | None:
    """Return what a job stores of a context: its `traceparent`, and `tracestate` and `baggage` if it has them.

    None if the context belongs to no trace. If a job cannot store it all, the baggage is left out
    first. The program decides with `OTEL_PROPAGATORS` whether it passes baggage on.
    """
    from opentelemetry.baggage.propagation import W3CBaggagePropagator  # noqa: PLC0415 - callers have it installed
    from opentelemetry.propagate import get_global_textmap  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, context)
    if "baggage" in get_global_textmap().fields:
        W3CBaggagePropagator().inject(headers, context)
    parts = [headers.get(name, "") for name in TRACE_HEADERS]
    if not parts[0]:
        return None
    if " " in parts[1]:  # Legal, but a space separates the parts.
        parts[1] = ""
    texts = (" ".join(parts[:count]).rstrip() for count in (3, 2, 1))
    return next(text for text in texts if len(text) <= LONGEST_TRACE)


def read_trace(trace: str | None) -> Context | None:
    """Return the context of a job's trace. None, the current context, for a job without one."""
    if trace is None:
        return None
    from opentelemetry.baggage.propagation import W3CBaggagePropagator  # noqa: PLC0415 - as above
    from opentelemetry.context import get_current  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    headers = split_trace(trace)
    remote = TraceContextTextMapPropagator().extract(headers, get_current())
    return W3CBaggagePropagator().extract(headers, remote)


def ids_of(traceparent: str | None) -> dict[str, object]:
    """Return the log fields of a trace.

    >>> ids_of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    {'trace_id': '4bf92f3577b34da6a3ce929d0e0e4736', 'span_id': '00f067aa0ba902b7'}
    """
    return {} if traceparent is None else {"trace_id": traceparent[3:35], "span_id": traceparent[36:52]}


@contextmanager
def enqueueing(own: Tracer, chunk: Chunk) -> Iterator[tuple[Chunk, Callable[[list[int]], None]]]:
    """Open the enqueue span.

    Yields the chunk with the trace of its jobs, and a function that takes their ids. An error in
    the block is recorded on the span and raised again.
    """
    from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415 - as above

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
    parent = read_trace(chunk.options.traceparent)
    with own.start_as_current_span(f"enqueue {chunk.kind}", parent, SpanKind.PRODUCER, attributes) as span:

        def record_ids(ids: list[int]) -> None:
            if len(ids) == 1:
                span.set_attribute("messaging.message.id", str(ids[0]))

        traceparent = write_trace(set_span_in_context(span, parent)) or chunk.options.traceparent
        yield replace(chunk, options=replace(chunk.options, traceparent=traceparent)), record_ids
