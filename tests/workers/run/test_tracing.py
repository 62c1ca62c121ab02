"""Spans of enqueues and attempts, in one trace. Without an OpenTelemetry SDK, no spans are made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobherd.handlers._define.hook_calls import Hooks
from jobherd.handlers._define.hooks import Child
from jobherd.handlers._enqueue.tracing import ids_of, tracer
from jobherd.workers.run.hooks import HookCaller
from jobherd.workers.run.tracing import spans
from tests.support.patience import LIMIT
from tests.support.seats import Bench, wait_for_line

ROOT = Path(__file__).resolve().parents[3]
TRACED = str(Path(__file__).parents[1] / "traced.py")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PRODUCER = """
import asyncio, json, sys
import psycopg
from opentelemetry import trace
from jobherd import AsyncClient, Client, enqueue_on
from tests.workers.traced import set_up, shown

exporter = set_up()
with Client(sys.argv[1]) as client:
    with trace.get_tracer("app").start_as_current_span("request"):
        ids = [client.enqueue("trace:works", {"next_one": True}, queue="default")]
    ids += client.enqueue_many("trace:fails", [{}, {}])
    ids += [client.enqueue("trace:snoozes", traceparent=sys.argv[2])]

    async def later():
        async with AsyncClient(sys.argv[1]) as own:
            return await own.enqueue("trace:works")

    ids += [asyncio.run(later())]
    with psycopg.connect(sys.argv[1]) as connection:
        connection.read_only = True
        try:
            enqueue_on(connection, "trace:refused")
        except psycopg.Error:
            pass
print(json.dumps({"ids": ids, "spans": shown(exporter)}))
"""

HEADERS = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "user=7"}
CONTINUES = """
import json, sys
from opentelemetry import context, propagate
from jobherd import Client
from tests.workers.traced import set_up

set_up()
context.attach(propagate.extract(json.loads(sys.argv[2])))
with Client(sys.argv[1]) as client:
    print(client.enqueue("trace:works", {"next_one": True}))
"""
STORES = """
import json, sys
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from jobherd.handlers._enqueue.tracing import write_trace

headers = json.loads(sys.argv[1])
print(write_trace(W3CBaggagePropagator().extract(headers, TraceContextTextMapPropagator().extract(headers))))
"""


def run(program: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:jobherd.handlers", "-c", program, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_enqueue_and_each_attempt_has_a_span_in_one_trace(bench: Bench, tmp_path, monkeypatch):
    produced = json.loads(run(PRODUCER, bench.dsn, PARENT))
    sent = {span["name"]: span for span in produced["spans"] if span["name"] != "enqueue trace:works"}
    one, alone = [span for span in produced["spans"] if span["name"] == "enqueue trace:works"]
    assert {span["kind"] for name, span in sent.items() if name != "request"} == {"PRODUCER"}
    assert (one["trace"], one["parent"]) == (sent["request"]["trace"], sent["request"]["id"])
    assert one["attributes"] == {
        "messaging.system": "jobherd",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": str(produced["ids"][0]),
        "jobherd.kind": "trace:works",
    }
    assert sent["enqueue trace:fails"]["attributes"]["messaging.batch.message_count"] == 2
    assert (sent["enqueue trace:snoozes"]["trace"], sent["enqueue trace:snoozes"]["parent"]) == (
        PARENT[3:35],
        PARENT[36:52],
    )
    assert alone["parent"] is None
    assert sent["enqueue trace:refused"]["status"] == "ERROR"
    assert "read-only" in sent["enqueue trace:refused"]["events"][0]["exception.message"]
    (stored,) = bench.ask("SELECT traceparent FROM jobherd.jobs WHERE id = %(id)s", id=produced["ids"][0])
    assert stored["traceparent"][:-3] == f"00-{one['trace']}-{one['id']}"

    together = [bench.ask("SELECT jobherd.enqueue('trace:together') AS id")[0]["id"] for _ in range(2)]
    monkeypatch.setenv("TRACED", str(tmp_path / "spans"))
    child = bench.start(handlers=(TRACED,), most_claimed=20)
    child.nudge()
    first, *failing, snoozed, last = produced["ids"]
    for job in (first, last, *together):
        bench.wait(job, "completed")
    for job in failing:
        bench.wait(job, "failed")
    bench.wait(snoozed, "scheduled", "retrying")
    child_job = next(row["id"] for row in bench.ask("SELECT max(id) AS id FROM jobherd.jobs"))
    bench.wait(child_job, "completed")
    wait_for_line(child, "is at work")
    child.dismiss()
    made = json.loads((tmp_path / "spans").read_text())
    by_job = {int(span["attributes"]["messaging.message.id"]): span for span in made if span["kind"] == "CONSUMER"}
    span = by_job[first]
    assert (span["trace"], span["parent"], span["name"], span["status"]) == (
        one["trace"],
        one["id"],
        "process trace:works",
        "UNSET",
    )
    assert span["attributes"] == {
        "messaging.system": "jobherd",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(first),
        "jobherd.kind": "trace:works",
        "jobherd.attempt": 1,
        "jobherd.max_attempts": 5,
        "jobherd.outcome": "ok",
    }
    inside = next(each for each in made if each["name"] == "inside" and each["trace"] == one["trace"])
    assert inside["parent"] == span["id"], "a span inside the handler is below the span of the attempt"
    assert by_job[last]["parent"] == alone["id"]
    assert all(each["links"] == ([] if each["parent"] is None else [each["parent"]]) for each in by_job.values())
    enqueued = next(each for each in made if each["kind"] == "PRODUCER")
    assert (enqueued["trace"], enqueued["parent"]) == (one["trace"], inside["id"])
    assert by_job[child_job]["parent"] == enqueued["id"], "a child job belongs to the trace of its parent job"
    for job in failing:
        assert (by_job[job]["status"], by_job[job]["attributes"]["error.type"]) == ("ERROR", "UNHANDLED_ERROR")
        assert by_job[job]["events"][0]["exception.message"] == "no such thing"
        assert "traced.py" in by_job[job]["events"][0]["exception.stacktrace"]
        assert by_job[job]["parent"] == sent["enqueue trace:fails"]["id"]
    assert (by_job[snoozed]["status"], by_job[snoozed]["attributes"]["jobherd.outcome"]) == ("UNSET", "snoozed")
    assert all(
        by_job[job]["attributes"]["jobherd.outcome"] == "ok" and by_job[job]["parent"] is None for job in together
    )
    line = next(line for line in child.log().splitlines() if "is at work" in line and f"job={first} " in line)
    assert f"trace_id={one['trace']}" in line
    assert f"span_id={span['id']}" in line


def test_without_an_sdk_log_lines_have_the_trace_and_no_spans_are_made(bench: Bench):
    assert tracer() is None
    assert spans() is None
    assert HookCaller(Hooks(), Child(), None, None).of_kind("trace:works") is None, (
        "jobs of this kind run without hook calls"
    )
    child = bench.start(handlers=(TRACED,))
    (row,) = bench.ask(
        "SELECT jobherd.enqueue('trace:works', '{\"next_one\": true}', jsonb_build_object('traceparent', %(p)s::text)) AS id",
        p=f"{PARENT} vendor=1 user=7",
    )
    child.nudge()
    bench.wait(row["id"], "completed")
    (after,) = bench.ask("SELECT max(id) AS id FROM jobherd.jobs")
    bench.wait(after["id"], "completed")
    (stored,) = bench.ask("SELECT traceparent FROM jobherd.jobs WHERE id = %(id)s", id=after["id"])
    assert stored["traceparent"] == f"{PARENT} vendor=1 user=7"
    wait_for_line(child, "is at work")
    line = next(line for line in child.log().splitlines() if "is at work" in line)
    assert f"trace_id={PARENT[3:35]}" in line
    assert f"span_id={PARENT[36:52]}" in line
    plain = bench.enqueue("trace:works")
    child.nudge()
    bench.wait(plain, "completed")
    child.dismiss()
    assert "trace_id" not in child.log().splitlines()[-1]


def test_trace_state_and_baggage_reach_the_handler_and_the_jobs_that_it_enqueues(bench: Bench, tmp_path, monkeypatch):
    job = int(run(CONTINUES, bench.dsn, json.dumps(HEADERS)))
    stored = "SELECT max(id) AS id, max(traceparent) AS trace FROM jobherd.jobs WHERE id >= %(id)s"
    (row,) = bench.ask(stored, id=job)
    assert row["trace"].startswith(f"00-{PARENT[3:35]}-")
    assert row["trace"].endswith("-01 vendor=1 user=7")
    monkeypatch.setenv("TRACED", str(tmp_path / "spans"))
    child = bench.start(handlers=(TRACED,))
    child.nudge()
    bench.wait(job, "completed")
    (after,) = bench.ask(stored, id=job + 1)
    bench.wait(after["id"], "completed")
    child.dismiss()
    assert after["trace"].endswith("-01 vendor=1 user=7")
    made = json.loads((tmp_path / "spans").read_text())
    assert {(span["trace"], span["state"]) for span in made} == {(PARENT[3:35], "vendor=1")}
    assert [span["attributes"] for span in made if span["name"] == "inside"] == [{"user": "7"}, {"user": "7"}]


def test_invalid_trace_state_and_oversized_baggage_are_not_stored(monkeypatch):
    def stored(**headers: str) -> str:
        return run(STORES, json.dumps(HEADERS | headers)).strip()

    assert stored() == f"{PARENT} vendor=1 user=7"
    assert stored(tracestate="") == f"{PARENT}  user=7"
    assert stored(tracestate="vendor=a space") == f"{PARENT}  user=7"
    assert stored(baggage="user=" + "7" * 1000) == f"{PARENT} vendor=1"
    assert run(STORES, json.dumps({"baggage": "user=7"})).strip() == "None"
    monkeypatch.setenv("OTEL_PROPAGATORS", "tracecontext")
    assert stored() == f"{PARENT} vendor=1"


@pytest.mark.parametrize(
    "what",
    [
        "handlers",
        "jobherd.workers.main, jobherd.workers.worker, jobherd.workers.web",
        "jobherd.supervisor.__main__, jobherd.supervisor.loop",
    ],
)
def test_jobherd_does_not_import_opentelemetry(what):
    run(f"import sys, {what}\nassert not [name for name in sys.modules if name.startswith('opentelemetry')]")


def test_opentelemetry_api_without_an_sdk_makes_no_spans():
    run(
        "from opentelemetry import trace\n"
        "from jobherd.handlers._enqueue.tracing import tracer\n"
        "assert tracer() is None\n"
        "from tests.workers.traced import set_up\n"
        "set_up()\n"
        "assert tracer() is tracer() is not None\n"
    )


def test_ids_of_returns_the_trace_and_span_id_of_a_traceparent():
    assert ids_of(None) == {}
    assert ids_of(PARENT) == {"trace_id": PARENT[3:35], "span_id": PARENT[36:52]}
