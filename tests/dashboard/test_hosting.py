"""The dashboard and the metrics on one port: routing, handoff of connections, and connection limits."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import subprocess
import sys
import threading

import pytest

from jobherd.workers import dashboard
from jobherd.workers.dashboard import live_updates
from jobherd.workers.web import page_handoff
from jobherd.workers.web.page_handoff import why_off
from tests.cli.shell import jobherd
from tests.support.herd import ROOT
from tests.workers.web.support import LIMIT, NO_DATABASE, Web

TOKEN = "operate-0123456789abcdef"


@pytest.fixture
def web():
    with Web(dashboard=True) as child:
        yield child


def get(connection, path, **headers):
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_dashboard_is_served_at_the_root_next_to_health_and_metrics(web):
    status, headers, text = web.ask("/login")
    assert (status, "server" in headers) == (303, False)
    assert web.ask("/static/dashboard.css")[0] == 200
    assert web.ask("/livez")[1]["content-type"] == "application/json"
    assert web.scrape().of("jobherd_queue_jobs_measured_timestamp_seconds") is None
    status, headers, text = web.ask("/no/such/page")
    assert (
        status,
        "<html" in text,
        headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'"),
    ) == (
        404,
        True,
        True,
    )


def test_one_connection_reaches_both_dashboard_and_metrics(web):
    """A browser reuses its connection.

    A connection that began with the dashboard must still reach the paths of the small metrics server.
    """
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=LIMIT)
    assert get(connection, "/static/dashboard.css")[0] == 200
    before = connection.sock
    status, text = get(connection, "/metrics")
    assert (status, "jobherd_" in text) == (200, True)
    assert get(connection, "/livez", Host="evil.example")[0] == 403
    assert get(connection, "/static/page.js")[0] == 200
    assert connection.sock is before
    connection.close()


def test_request_that_arrives_in_pieces_is_read_completely(web):
    """Bytes that were read before the handoff to the dashboard must not be lost, nor bytes that follow it."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT) as sent:
        body = b"csrf=x&token=y"
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n"
        for part in (head[:20], head[20:], b"Content-Length: %d\r\n\r\n" % len(body) + body[:4], body[4:]):
            sent.sendall(part)
        answer = b"".join(iter(lambda: sent.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 403 "), answer[:200]
    assert b"This form is too old" in answer


def test_forwarded_for_header_is_ignored(web):
    """A client that can claim another address could also claim to be on this host."""
    assert web.ask("/login", **{"X-Forwarded-For": "10.0.0.1"})[0] == 303


@pytest.mark.parametrize("path", ["/live?topic=test", "/"])
def test_the_exit_waits_until_running_queries_are_canceled(monkeypatch, path):
    """Regression: the event loop was closed while a query of a stream or of the attention strip still ran.

    The garbage collector then closed its session, with an error in the log.
    """
    begun, ended, original = threading.Event(), threading.Event(), dashboard.application

    async def ask(*_):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)  # as long as the driver's round trip
            ended.set()
            raise

    def application(*args, **options):
        app = original(*args, **options)
        if path == "/":
            app.state.attention._ask = ask
        else:
            app.state.hub._topics["test"] = live_updates.Topic("test", "none.html", ask)
        return app

    monkeypatch.setattr(dashboard, "application", application)
    with Web(dashboard=True) as web, socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT) as viewer:
        viewer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert begun.wait(LIMIT)
        web.dismiss()
        assert ended.is_set()


def test_request_with_another_host_name_is_rejected(web):
    assert web.ask("/login", Host="evil.example")[0] == 403


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"nonsense\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n"]
)
def test_malformed_request_is_rejected_and_the_process_keeps_serving(web, head):
    with socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT) as sent:
        sent.sendall(head)
        assert sent.recv(65536).split(b"\r\n")[0].split(b" ")[1] in {b"400", b"403"}
    assert web.ask("/livez")[0] == 503


def test_open_stream_does_not_delay_the_exit_of_the_process(web):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=LIMIT)) as connection:
        connection.request("GET", "/live?topic=queues")
        with connection.getresponse() as stream:
            assert (stream.status, stream.readline()) == (200, b"retry: 2000\n")
            web.dismiss()


def test_dashboard_at_a_public_address_requires_a_token():
    with Web(http=("0.0.0.0", 0), dashboard=True) as child:
        status, _, text = child.ask("/")
        assert (status, "no token" in text) == (200, True)
        assert child.ask("/login")[0] == 404
    with Web(http=("0.0.0.0", 0), dashboard=True, dashboard_operate_token=(TOKEN,)) as child:
        assert child.ask("/")[0] == 401
        assert child.ask("/", Host="jobs.example", Authorization="Bearer wrong-0123456789abcdef")[0] == 401


def test_root_shows_how_to_install_the_missing_extra(monkeypatch):
    monkeypatch.setattr("jobherd.workers.web.page_handoff.find_spec", lambda name: None)
    with Web(dashboard=True) as child:
        assert "pip install 'jobherd[web]'" in child.ask("/")[2]
        assert child.ask("/login")[0] == 404


def test_importing_the_web_process_does_not_import_the_dashboard():
    code = (
        "import sys; from jobherd.workers.web import run; from jobherd.workers.web.page_handoff import why_off\n"
        "sys.exit(', '.join(sorted({'starlette', 'uvicorn', 'jinja2', 'jobherd.workers.dashboard'} & set(sys.modules))) or None)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_supervisor_does_not_start_with_a_public_dashboard_without_a_valid_token(tmp_path):
    words = ("run", "--workers", "0", "--http", "0.0.0.0:0")
    ran = jobherd(*words, dsn=NO_DATABASE, cwd=tmp_path)
    assert ran.code == 78
    assert "the dashboard has no token: set JOBHERD_DASHBOARD_OPERATE_TOKEN" in ran.err
    shown = jobherd(*words, "--print-settings", dsn=NO_DATABASE, cwd=tmp_path, JOBHERD_DASHBOARD_OPERATE_TOKEN=TOKEN)
    assert (shown.code, TOKEN in shown.out, "dashboard_operate_token" in shown.out) == (0, False, True)
    short = jobherd(
        *words, "--print-settings", dsn=NO_DATABASE, cwd=tmp_path, JOBHERD_DASHBOARD_OPERATE_TOKEN="short-secret"
    )
    assert (short.code, "short-secret" in short.err + short.out, "16 to 200" in short.err) == (78, False, True)


def test_why_off_explains_why_the_dashboard_is_off():
    from jobherd.workers.process.spec import ChildSettings

    def reason(**options):
        return why_off(ChildSettings(dsn=NO_DATABASE, **options))

    assert (
        reason(dashboard=True)
        == reason(dashboard=True, http=("localhost", 1))
        == reason(dashboard=True, http=("::1", 1))
        == ""
    )
    assert reason(dashboard=False) == "The dashboard is off: setting dashboard."
    assert "no token" in reason(dashboard=True, http=("jobs.example", 1))


# -- connection limits


@pytest.fixture
def held():
    """Returns a function that opens `count` connections and sends `request` on each. The test's end closes them."""
    with contextlib.ExitStack() as kept:

        def held(port, request, count, *, answered=False):
            opened = []
            for _ in range(count):
                connection = kept.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT))
                connection.sendall(request)
                if answered:
                    assert connection.recv(12) == b"HTTP/1.1 200"
                opened.append(connection)
            return opened

        yield held


HALF_A_FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 500\r\n\r\nx"


@pytest.mark.parametrize("request_", [b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n", HALF_A_FORM])
def test_clients_without_a_token_cannot_use_up_all_connections(request_, monkeypatch, held):
    """Regression: while a client kept 300 connections open with one request each, all others received 503."""
    monkeypatch.setattr(page_handoff, "CONNECTIONS", 30)
    with Web(dashboard=True, dashboard_operate_token=(TOKEN,)) as web:
        held(web.port, request_, 60)
        for _ in range(3):
            assert web.ask("/login")[0] == 200
            assert web.ask("/static/dashboard.css")[0] == 200
        assert not [line for line in web.log.lines if "failed" in line], "the connections must not fill the log"


def test_only_connections_with_a_token_stay_open_after_a_response():
    with Web(dashboard=True, dashboard_operate_token=(TOKEN,)) as web:
        connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=LIMIT)
        for path in ("/login", "/jobs", "/static/dashboard.css"):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            assert (answer.getheader("connection"), connection.sock) == ("close", None), path
        for _ in range(2):
            connection.request("GET", "/static/dashboard.css", headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            answer.read()
            assert (answer.status, answer.getheader("connection")) == (200, None)
            assert connection.sock is not None
        connection.close()


def test_new_connections_displace_those_without_a_token_first(monkeypatch, held):
    monkeypatch.setattr(page_handoff, "CONNECTIONS", 10)
    monkeypatch.setattr(page_handoff, "STRANGERS", 1000)
    with Web(dashboard=True, dashboard_operate_token=(TOKEN,)) as web:
        sent = (
            f"GET /static/dashboard.css HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        known = held(web.port, sent, 5, answered=True)
        held(web.port, HALF_A_FORM, 30)
        assert web.ask("/login")[0] == 200
        for connection in known:
            connection.sendall(sent)
            answers = b""  # the rest of the first response, then the second one
            while b"HTTP/1.1 200" not in answers:
                more = connection.recv(2**20)
                assert more, "the server closed a connection that has a token"
                answers += more
        # New connections displace only idle ones: one whose request is still being answered stays open.
        held(web.port, sent, 30, answered=True)
        assert web.ask("/login")[0] == 200, "a new connection must displace an idle one that has a token"


@pytest.mark.parametrize("path", [b"/login", b"/metrics", b"/jobs"])
@pytest.mark.parametrize(
    "head",
    [
        b"POST %b HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked",
        b"POST %b HTTP/1.0\r\nTransfer-Encoding: chunked",
    ],
)
def test_request_with_two_lengths_is_rejected_and_the_rest_is_not_read(web, path, head):
    """A proxy that uses the other length would see one request where the dashboard answers two."""
    first = (head % path) + b"\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT) as sent:
        sent.sendall(first + b"GET /static/dashboard.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: sent.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower()
