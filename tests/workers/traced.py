"""Handlers in a worker that sets up an OpenTelemetry SDK and writes its spans to a file when it exits."""

from __future__ import annotations

import json
import os

from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jobherd import Job, Snooze, handler, on_child_start


def shown(exporter: InMemorySpanExporter) -> list[dict[str, object]]:
    """Return the ended spans in a form for JSON."""
    return [
        {
            "name": span.name,
            "kind": span.kind.name,
            "trace": f"{span.context.trace_id:032x}",
            "id": f"{span.context.span_id:016x}",
            "parent": f"{span.parent.span_id:016x}" if span.parent else None,
            "links": [f"{link.context.span_id:016x}" for link in span.links],
            "state": span.context.trace_state.to_header(),
            "attributes": dict(span.attributes),
            "status": span.status.status_code.name,
            "events": [dict(event.attributes) for event in span.events],
        }
        for span in exporter.get_finished_spans()
    ]


def set_up() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@on_child_start
def sdk():
    if file := os.environ.get("TRACED"):
        exporter = set_up()
        yield {}
        with open(file, "w") as stream:
            json.dump(shown(exporter), stream)
    else:
        yield {}


@handler("trace:works")
def works(job: Job, next_one: bool = False) -> str:
    job.log.info("is at work")
    with trace.get_tracer("own").start_as_current_span("inside", attributes=baggage.get_all()):
        if next_one:
            works.enqueue()
    return "done"


@handler("trace:fails", max_attempts=1)
def fails() -> None:
    raise ValueError("no such thing")


@handler("trace:snoozes")
def snoozes(job: Job) -> object:
    return Snooze("1h")


@handler("trace:together", batch=3)
def together(jobs: list[Job]) -> None:
    return None
