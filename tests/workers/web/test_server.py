"""Tests that the web server answers valid requests, and that no request can harm it.

The harmful requests are slow, large or from other sites.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading

import pytest

from jobherd.workers import web
from jobherd.workers.ipc import pipes
from jobherd.workers.ipc.current_work import Phase
from jobherd.workers.system.local_address import host_of
from jobherd.workers.web.cpu_budget import PAUSE, CpuBudget
from jobherd.workers.web.http_message import Answer, Refused, parse
from jobherd.workers.web.server import Limits, Server
from tests.workers.web.support import LIMIT, NO_DATABASE, Web


@pytest.fixture(scope="module")
def child():
    with Web() as running:
        yield running


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT)


def raw(port: int, request: bytes) -> bytes:
    """Return the complete response to these bytes."""
    with connect(port) as connection:
        connection.sendall(request)
        answer = b""
        while more := connection.recv(65536):
            answer += more
        return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# -- responses


def test_index_lists_every_path(child):
    code, _, text = child.ask("/")
    assert code == 200
    named = [line.split()[0] for line in text.splitlines() if line.startswith("/")]
    assert named == ["/metrics", "/livez", "/readyz", "/startupz"]
    assert all(child.ask(path)[0] in (200, 503) for path in named)


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "//metrics", "/../etc/passwd", "/%2e%2e/", "/livez;x"])
def test_unknown_path_is_not_found(child, path):
    assert child.ask(path)[0] == 404


def test_query_string_is_ignored(child):
    assert child.ask("/?drop=everything")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"])
def test_only_get_and_head_are_allowed(child, method):
    code, headers, _ = child.ask("/metrics", method=method)
    assert (code, headers["allow"]) == (405, "GET, HEAD")


def test_server_does_not_wait_for_a_request_body(child):
    assert status(raw(child.port, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nabc")) == 405


def test_head_response_has_the_length_and_no_body(child):
    _, asked, body = child.ask("/")
    code, told, nothing = child.ask("/", method="HEAD")
    assert (code, nothing) == (200, "")
    assert told["content-length"] == asked["content-length"] == str(len(body))


def test_responses_have_security_headers_and_reveal_no_server_software(child):
    _, headers, _ = child.ask("/metrics")
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


# -- allowed hosts


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8790", "127.1.2.3:80", "[::1]:8790", "localhost."]
)
def test_server_on_loopback_accepts_loopback_hosts(child, host):
    assert status(raw(child.port, f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8790",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::2]",
        "0.0.0.0",
        "10.0.0.1",
        "",
        "@",
    ],
)
def test_server_on_loopback_rejects_other_hosts(child, host):
    answer = raw(child.port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert status(answer) == 403
    assert b"jobherd_" not in answer
    assert not host or host == "@" or host.encode() not in answer


def test_http_1_0_request_needs_no_host(child):
    assert status(raw(child.port, b"GET / HTTP/1.0\r\n\r\n")) == 200


@pytest.mark.parametrize(
    "hosts", [b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host: localhost\r\nhost: localhost\r\n"]
)
def test_http_1_1_request_must_have_exactly_one_host(child, hosts):
    assert status(raw(child.port, b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")) == 400


def test_server_on_all_interfaces_accepts_any_host():
    with Web(http=("0.0.0.0", 0)) as child:
        assert child.ask("/", Host="jobs.example")[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET",
        b"GET / HTTP/2.0",
        b"GET / HTTP/1.1 ",
        b"get / HTTP/1.1",
        b"GET  / HTTP/1.1",
        b"GET http://evil.example/ HTTP/1.1",
        b"GET /\x00 HTTP/1.1",
        b"GET /\xe4 HTTP/1.1",
        b"GET /" + b"a" * 3000 + b" HTTP/1.1",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET / HTTP/1.1\r\nHost : localhost",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded",
        b"GET / HTTP/1.1\r\nHost: local\nhost",
        b"GET / HTTP/1.1\r\nHost: local\x00host",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_malformed_request_is_rejected(head):
    with pytest.raises(Refused) as refused:
        parse(head)
    assert refused.value.answer.status == 400


def test_hosts_are_read_without_their_port():
    assert [host_of(text) for text in ("A:1", "[::1]", "::1", "a.", "[", ":")] == ["a", "::1", "::1", "a", "", ""]


# -- harmful clients


def test_long_request_head_is_rejected(child):
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000
    assert status(raw(child.port, head + b"\r\n\r\n")) == 431
    assert status(raw(child.port, head)) == 431, "the server must not wait for the end of the head"


def test_ten_megabytes_of_request_head_do_not_affect_other_clients(child):
    with connect(child.port) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(160):
                loud.sendall(b"X-Long: " + b"a" * 65536 + b"\r\n")
        assert child.ask("/")[0] == 200


def test_silent_connections_do_not_block_valid_requests(child):
    """Twice as many clients as the limit connect and send nothing, or half a request.

    A valid request is still answered at once.
    """
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(child.port)) for _ in range(2 * Limits().connections)]
        for one in silent[::2]:
            with contextlib.suppress(ConnectionError):  # the server may have closed it already
                one.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        assert [child.ask("/")[0] for _ in range(5)] == [200] * 5
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the server closes the oldest connection"


def in_a_loop(limits: Limits, body: bytes, talk, budget: CpuBudget | None = None) -> None:
    """Run a server of one page, and `talk(port)` against it in a thread."""

    async def both() -> None:
        async def page(_):
            return Answer(200, body)

        async def broken(_):
            raise RuntimeError("canary-secret")

        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        port = listening.getsockname()[1]
        server = Server(
            listening, {"/": page, "/broken": broken}, names=None, budget=budget or CpuBudget(), limits=limits
        )
        serving = asyncio.create_task(server.serve())
        try:
            await asyncio.wait_for(asyncio.to_thread(talk, port), LIMIT)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        assert not server._open

    asyncio.run(both())


def test_server_closes_a_connection_with_an_incomplete_request():
    def talk(port):
        assert raw(port, b"GET / HTTP/1.1\r\nHost: x") == b""

    in_a_loop(Limits(asking=1.0), b"hello", talk)


def test_server_closes_a_connection_whose_client_does_not_read_the_response():
    def talk(port):
        with connect(port) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            watch = select.poll()
            watch.register(slow, select.POLLRDHUP)
            assert watch.poll(LIMIT * 1000), "the server still waits for the client to read"

    in_a_loop(Limits(taking=0.05), b"a" * 50_000_000, talk)


def test_server_closes_a_connection_that_its_client_keeps_open():
    def talk(port):
        with connect(port) as stays:
            stays.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while stays.recv(65536):
                pass
            watch = select.poll()
            watch.register(stays, select.POLLHUP | select.POLLERR)
            with contextlib.suppress(ConnectionError):
                while not watch.poll(0):
                    stays.send(b"and another thing" * 1000)

    in_a_loop(Limits(lingering=0.05), b"hello", talk)


def test_long_response_arrives_completely():
    body = bytes(range(256)) * 20_000

    def talk(port):
        assert raw(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")[2] == body

    in_a_loop(Limits(), body, talk)


def test_failing_page_responds_500_without_details_and_is_logged_once(caplog):
    def talk(port):
        for _ in range(3):
            answer = raw(port, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status(answer) == 500
            assert b"canary-secret" not in answer

    in_a_loop(Limits(), b"", talk)
    assert len([record for record in caplog.records if "/broken failed" in record.getMessage()]) == 1


def test_requests_over_the_cpu_budget_are_delayed_and_all_answered(monkeypatch):
    """If the CPU budget is always empty, each connection waits for a pause and is still answered."""
    pauses: list[float] = []

    class Empty(CpuBudget):
        def pause(self) -> float:
            pauses.append(0.001)
            return 0.001

    def talk(port):
        assert [status(raw(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")) for _ in range(50)] == [200] * 50

    in_a_loop(Limits(), b"hello", talk, Empty())
    assert len(pauses) >= 50


def test_cpu_budget_pauses_after_overspending_and_refills_with_time():
    now, used = [100.0], [5.0]
    budget = CpuBudget(clock=lambda: now[0], used=lambda: used[0])
    assert budget.pause() == 0
    assert not budget.is_strained()
    used[0] += 0.6
    assert budget.is_strained()
    assert budget.pause() == 0, "the saved budget may be spent"
    used[0] += 0.41
    assert budget.pause() == pytest.approx(0.1), "0.01 s over the budget needs a pause of 0.1 s"
    now[0] += 0.1
    assert budget.pause() == pytest.approx(0, abs=1e-9)
    used[0] += 10
    assert budget.pause() == PAUSE, "a pause is limited so that a probe is still answered"
    now[0] += 1000
    assert not budget.is_strained()


# -- start and end


def test_web_process_exits_when_dismissed_and_not_when_woken():
    with Web() as child:
        child.nudge()
        assert child.ask("/")[0] == 200
        assert child.boards[-1].now().phase is Phase.IDLE
        child.dismiss()
        assert child.boards[-1].now().phase is Phase.LEAVING
        with pytest.raises(ConnectionRefusedError):
            connect(child.port)


def test_web_process_exits_while_clients_are_connected():
    with Web() as child, connect(child.port) as slow:
        slow.sendall(b"GET /")
        child.ask("/")
        child.dismiss()


def test_web_process_reports_an_occupied_port_once_and_uses_it_when_it_is_free(monkeypatch):
    monkeypatch.setattr(web, "RETRY_FIRST", 0.001)
    monkeypatch.setattr(web, "RETRY_MOST", 0.01)
    tries = threading.Semaphore(0)
    bind = web.bind

    async def counted(host, port):
        tries.release()
        return await bind(host, port)

    monkeypatch.setattr(web, "bind", counted)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with Web(http=("127.0.0.1", port)) as child:  # it is READY without the port
            for _ in range(5):
                assert tries.acquire(timeout=LIMIT)
            assert "cannot listen" not in str(child.log.lines), "the supervisor logs it"
            holder.close()
            child.log.wait_for("metrics and health on")
            assert child.ask("/")[0] == 200
            assert not [report for report in child._heard if isinstance(report, pipes.Ready | pipes.Problem)], (
                "each is reported once"
            )


def test_occupied_port_is_reported_to_the_supervisor():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        child = Web(http=("127.0.0.1", holder.getsockname()[1]))
        child._thread.start()
        problem = child.wait_for(pipes.Problem)
        assert isinstance(problem, pipes.Problem)
        assert "cannot listen on 127.0.0.1" in problem.text
        assert "--http" in problem.text
        child.__dict__["_level"] = 0
        child.__exit__()


def test_unknown_host_is_reported_like_an_occupied_port():
    child = Web(http=("nowhere.invalid", 1))
    child._thread.start()
    assert "nowhere.invalid:1" in child.wait_for(pipes.Problem).text
    child.__dict__["_level"] = 0
    child.__exit__()


def test_database_password_is_in_no_response_and_no_log_line():
    with Web(NO_DATABASE) as child:
        seen = [str(child.ask(path)) for path in ("/", "/metrics", "/livez", "/readyz", "/startupz", "/x")]
        child.log.wait_for("metrics: the depth of the queues cannot be measured")
    assert "canary-secret" not in "".join(seen + child.log.lines)


def test_password_in_an_invalid_dsn_is_not_logged():
    with Web("host=localhost canary-secret") as child:
        assert child.ask("/metrics")[0] == 200
        child.log.wait_for("metrics: the depth of the queues cannot be measured")
    assert "canary-secret" not in "".join(child.log.lines)
