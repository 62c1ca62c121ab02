"""Tests what real workers send to Sentry. A server of this test replaces Sentry."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest

from jobherd import Client
from tests.support.checkout import import_path
from tests.support.patience import LIMIT

HANDLERS = Path(__file__).parent / "sentry_handlers.py"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

TRACE = f"{PARENT}  sentry-trace_id={PARENT[3:35]},sentry-public_key=key,sentry-release=shop-1"


@pytest.fixture
def sentry():
    """Yield the address of a server, and the items that it has received: (type, body)."""
    items: list[tuple[str, dict]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            envelope, *lines = body.split(b"\n")
            items.append(("envelope", json.loads(envelope)))
            for head, text in zip(lines[::2], lines[1::2], strict=False):
                items.append((json.loads(head)["type"], json.loads(text)))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://key@127.0.0.1:{server.server_port}/1", items
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.system
def test_every_failure_transaction_and_checkin_arrives(database, sentry, tmp_path):
    address, items = sentry
    command = [sys.executable, "-P", "-m", "jobherd.supervisor"]
    environment = os.environ | {
        "JOBHERD_DSN": database,
        "PYTHONPATH": import_path(),
        "SENTRY_DSN": address,
        "JOBHERD_SPAWN_TIMEOUT": "60s",
        "JOBHERD_HTTP": "127.0.0.1:0",
        "JOBHERD_HANDLERS": str(HANDLERS),
    }

    def run(*words: str) -> None:
        """Run all jobs to their end."""
        done = subprocess.run(
            [
                *command,
                "run",
                "--hooks",
                "jobherd.sentry",
                "--until-empty",
                "--ignore-failures",
                "--workers",
                "1",
                *words,
            ],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            timeout=2 * LIMIT,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    run()  # stores the schedule
    with Client(database) as client:
        client.enqueue_many("sentry:fails", [{"number": number} for number in range(30)], traceparent=TRACE)
        retried = client.enqueue("sentry:retries")
    with psycopg.connect(database) as connection:
        connection.execute("SELECT jobherd.run_schedule(name) FROM jobherd.schedules")
    run()
    with psycopg.connect(database, autocommit=True) as connection:
        state = "SELECT state FROM jobherd.jobs WHERE id = %s"
        while connection.execute(state, [retried]).fetchone() != ("failed",):
            run()  # the previous run did not wait for an attempt that was not due
    with Client(database) as client:
        client.enqueue("sentry:dies")  # separately: a process that dies loses its unsent events
    run()

    events = [body for kind, body in items if kind == "event"]
    failures = [body for body in events if "exception" in body]
    values = [body["exception"]["values"][-1]["value"] for body in failures]
    assert sorted(values) == sorted([f"number {number}" for number in range(30)] + ["attempt 2"])
    assert {body["contexts"]["job"]["kind"] for body in failures} == {"sentry:fails", "sentry:retries"}
    traced = [body for body in failures if body["contexts"]["job"]["kind"] == "sentry:fails"]
    assert {body["contexts"]["trace"]["trace_id"] for body in traced} == {PARENT.split("-")[1]}
    heads = [body["trace"] for kind, body in items if kind == "envelope" and "trace" in body]
    assert {head.get("release") for head in heads if head["trace_id"] == PARENT[3:35]} == {"shop-1"}
    (death,) = [body for body in events if "exception" not in body]
    assert (death["level"], death["tags"]["jobherd.kind"]) == ("fatal", "sentry:dies")

    transactions = [body["transaction"] for kind, body in items if kind == "transaction"]
    assert transactions.count("sentry:fails") == 30
    assert transactions.count("sentry:retries") == 2
    checkins = [body for kind, body in items if kind == "check_in"]
    assert [body["status"] for body in checkins] == ["in_progress", "ok"]
    assert len({body["check_in_id"] for body in checkins}) == 1
    assert {body["monitor_slug"] for body in checkins} == {"sentry-yearly"}
    assert checkins[0]["monitor_config"]["schedule"] == {"type": "crontab", "value": "30 3 29 2 *"}
    assert checkins[0]["monitor_config"]["timezone"] == "Europe/Berlin"
    assert "payload" not in json.dumps([body.get("contexts") for _, body in items])
