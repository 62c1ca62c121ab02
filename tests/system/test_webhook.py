"""A webhook under a supervisor: the final state of a job is sent to the URL that the job names."""

from __future__ import annotations

import hashlib
import hmac
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import orjson
import psycopg
import pytest

from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from tests.support.fleet import Stage

SECRET = "a-secret-of-some-length"


@pytest.mark.promise("D40")
def test_webhook_is_sent_when_a_job_ends_and_again_after_an_error_response(stage: Stage):
    got: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
    answers = iter([500, 200])

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.put((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(next(answers))
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            stage.run_fleet(workers=1, poll="300s", webhook_secret=SECRET, webhook_allow="127.0.0.1")
            url = f"http://127.0.0.1:{server.server_port}/done"
            job = stage.call(
                "SELECT jobherd.enqueue('t:noop', '{}', json_build_object('webhook', %s::text, 'tenant', 'acme')::jsonb)",
                url,
            )
            headers, body = got.get(timeout=LIMIT)
            webhook = int(headers["Jobherd-Delivery"])
            stage.wait_state(webhook, "retrying")
            assert stage.call("SELECT jobherd.retry(%s)", webhook) == "ready"  # its backoff is 10 s
            again, same = got.get(timeout=LIMIT)
            stage.wait_state(webhook, "completed")
        finally:
            server.shutdown()
            thread.join()
    assert body == same
    event = orjson.loads(body)
    assert (event["id"], event["kind"], event["state"], event["tenant"], event["code"]) == (
        job,
        "t:noop",
        "completed",
        "acme",
        None,
    )
    assert [headers["Jobherd-Attempt"], again["Jobherd-Attempt"]] == ["1", "2"]
    at, signature = (part.partition("=")[2] for part in again["Jobherd-Signature"].split(","))
    assert signature == hmac.new(SECRET.encode(), f"{at}.".encode() + same, hashlib.sha256).hexdigest()
    assert stage.job(webhook)["result"] == {"status": 200}


def test_open_transaction_delays_neither_the_start_nor_the_recording_of_outcomes(stage: Stage):
    """A trigger enables webhooks, and its creation waits for every session that writes to the history."""
    over = stage.enqueue("t:noop")
    assert stage.cancel(over) == "cancelled"
    with psycopg.connect(stage.dsn) as caller:
        caller.execute("SELECT jobherd.retry(%s)", [over])
        fleet = stage.run_fleet(workers=1, webhook_secret=SECRET)
        fleet.wait_log("webhooks are not enabled yet, trying again in 2 s: LockNotAvailable")
        stage.wait_state(stage.enqueue("t:noop"), "completed")
    stage.wait(
        lambda: stage.call("SELECT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'webhook')"), "webhooks are enabled"
    )
