"""The page and the metrics at one port: who answers what, and what each does to the other."""

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


def test_the_page_is_at_the_root_and_metrics_stay_where_they_were(web):
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


def test_one_connection_gets_both(web):
    """A browser keeps its connection.

    Also the addresses that the small server answers must be found on one that began with the page.
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


def test_a_request_that_comes_in_pieces_is_put_together(web):
    """What was read before the page took over is not lost, nor what comes after it."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT) as sent:
        body = b"csrf=x&token=y"
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n"
        for part in (head[:20], head[20:], b"Content-Length: %d\r\n\r\n" % len(body) + body[:4], body[4:]):
            sent.sendall(part)
        answer = b"".join(iter(lambda: sent.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 403 "), answer[:200]
    assert b"This form is too old" in answer


def test_nobody_is_believed_to_come_from_elsewhere(web):
    """A client that may claim another address could also claim to be on this machine."""
    assert web.ask("/login", **{"X-Forwarded-For": "10.0.0.1"})[0] == 303


@pytest.mark.parametrize("path", ["/live?topic=test", "/"])
def test_the_exit_waits_until_running_queries_are_canceled(monkeypatch, path):
    """A stream's query and the one for the strip of all pages. The loop was closed over them.

    A session was left to the garbage collector, with an error in the log.
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


def test_what_names_itself_otherwise_is_refused(web):
    assert web.ask("/login", Host="evil.example")[0] == 403


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"nonsense\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n"]
)
def test_nonsense_is_refused_and_the_child_goes_on(web, head):
    with socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT) as sent:
        sent.sendall(head)
        assert sent.recv(65536).split(b"\r\n")[0].split(b" ")[1] in {b"400", b"403"}
    assert web.ask("/livez")[0] == 503


def test_a_stream_ends_when_the_child_leaves(web):
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=LIMIT)
    connection.request("GET", "/live?topic=test")
    assert connection.getresponse().status in {200, 404}
    web.dismiss()
    connection.close()


def test_off_this_machine_there_is_no_page_without_a_token():
    with Web(http=("0.0.0.0", 0), dashboard=True) as child:
        status, _, text = child.ask("/")
        assert (status, "no token" in text) == (200, True)
        assert child.ask("/login")[0] == 404
    with Web(http=("0.0.0.0", 0), dashboard=True, dashboard_operate_token=(TOKEN,)) as child:
        assert child.ask("/")[0] == 401
        assert child.ask("/", Host="jobs.example", Authorization="Bearer wrong-0123456789abcdef")[0] == 401


def test_without_the_extra_the_root_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("jobherd.workers.web.page_handoff.find_spec", lambda name: None)
    with Web(dashboard=True) as child:
        assert "pip install 'jobherd[web]'" in child.ask("/")[2]
        assert child.ask("/login")[0] == 404


def test_nothing_of_the_page_is_loaded_before_somebody_opens_it():
    code = (
        "import sys; from jobherd.workers.web import run; from jobherd.workers.web.page_handoff import why_off\n"
        "sys.exit(', '.join(sorted({'starlette', 'uvicorn', 'jinja2', 'jobherd.workers.dashboard'} & set(sys.modules))) or None)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_supervisor_refuses_to_show_the_page_to_a_network_without_a_token(tmp_path):
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


def test_the_reason_for_no_page_is_a_sentence():
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


# -- people who take places


@pytest.fixture
def held():
    """Open so many connections that send this and stay open. The end of the test closes them."""
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
def test_people_without_a_token_cannot_shut_the_page(request_, monkeypatch, held):
    """300 connections, each with one request and kept open, had everybody else told 503 for as long as they liked."""
    monkeypatch.setattr(page_handoff, "CONNECTIONS", 30)
    with Web(dashboard=True, dashboard_operate_token=(TOKEN,)) as web:
        held(web.port, request_, 60)
        for _ in range(3):
            assert web.ask("/login")[0] == 200
            assert web.ask("/static/dashboard.css")[0] == 200
        assert not [line for line in web.log.lines if "failed" in line], "nor fill the log"


def test_a_connection_without_a_token_ends_with_its_answer_and_one_with_a_token_does_not():
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


def test_who_has_shown_a_token_keeps_a_place_before_those_who_have_not(monkeypatch, held):
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
            answers = b""  # the rest of the first one, and the second
            while b"HTTP/1.1 200" not in answers:
                more = connection.recv(2**20)
                assert more, "it is still there"
                answers += more
        # Only idle connections give way: those whose request is still being answered keep their places.
        held(web.port, sent, 30, answered=True)
        assert web.ask("/login")[0] == 200, "those who are idle give way, too"


@pytest.mark.parametrize("path", [b"/login", b"/metrics", b"/jobs"])
@pytest.mark.parametrize(
    "head",
    [
        b"POST %b HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked",
        b"POST %b HTTP/1.0\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_request_of_two_lengths_is_refused_and_what_follows_is_not_read(web, path, head):
    """A proxy that goes by the other length sees one request where the page answered two."""
    first = (head % path) + b"\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT) as sent:
        sent.sendall(first + b"GET /static/dashboard.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: sent.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower()
