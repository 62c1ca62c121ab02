"""The server answers valid requests, and no request can hurt it.

Slow ones, loud ones, ones from other sites.
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
    """Return all that is answered to these bytes."""
    with connect(port) as connection:
        connection.sendall(request)
        answer = b""
        while more := connection.recv(65536):
            answer += more
        return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# -- what is answered


def test_the_index_names_every_page(child):
    code, _, text = child.ask("/")
    assert code == 200
    named = [line.split()[0] for line in text.splitlines() if line.startswith("/")]
    assert named == ["/metrics", "/livez", "/readyz", "/startupz"]
    assert all(child.ask(path)[0] in (200, 503) for path in named)


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "//metrics", "/../etc/passwd", "/%2e%2e/", "/livez;x"])
def test_everything_else_is_not_found(child, path):
    assert child.ask(path)[0] == 404


def test_a_query_changes_nothing(child):
    assert child.ask("/?drop=everything")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"])
def test_nothing_but_get_and_head_is_allowed(child, method):
    code, headers, _ = child.ask("/metrics", method=method)
    assert (code, headers["allow"]) == (405, "GET, HEAD")


def test_a_body_is_not_waited_for(child):
    assert status(raw(child.port, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nabc")) == 405


def test_head_tells_the_length_and_sends_nothing(child):
    _, asked, body = child.ask("/")
    code, told, nothing = child.ask("/", method="HEAD")
    assert (code, nothing) == (200, "")
    assert told["content-length"] == asked["content-length"] == str(len(body))


def test_answers_are_not_kept_not_guessed_and_not_framed(child):
    _, headers, _ = child.ask("/metrics")
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


# -- who may ask


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8790", "127.1.2.3:80", "[::1]:8790", "localhost."]
)
def test_on_loopback_its_own_names_are_answered(child, host):
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
def test_on_loopback_a_name_of_somebody_elses_is_refused(child, host):
    answer = raw(child.port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert status(answer) == 403
    assert b"jobherd_" not in answer
    assert not host or host == "@" or host.encode() not in answer


def test_a_probe_of_the_old_protocol_needs_no_host(child):
    assert status(raw(child.port, b"GET / HTTP/1.0\r\n\r\n")) == 200


@pytest.mark.parametrize(
    "hosts", [b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host: localhost\r\nhost: localhost\r\n"]
)
def test_a_request_has_one_host(child, hosts):
    assert status(raw(child.port, b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")) == 400


def test_on_an_open_address_any_name_is_answered():
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
def test_what_is_no_request_is_refused(head):
    with pytest.raises(Refused) as refused:
        parse(head)
    assert refused.value.answer.status == 400


def test_hosts_are_read_without_their_port():
    assert [host_of(text) for text in ("A:1", "[::1]", "::1", "a.", "[", ":")] == ["a", "::1", "::1", "a", "", ""]


# -- who hurts


def test_a_long_head_is_refused(child):
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000
    assert status(raw(child.port, head + b"\r\n\r\n")) == 431
    assert status(raw(child.port, head)) == 431, "and before its end has come"


def test_ten_megabytes_of_head_hurt_nobody(child):
    with connect(child.port) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(160):
                loud.sendall(b"X-Long: " + b"a" * 65536 + b"\r\n")
        assert child.ask("/")[0] == 200


def test_people_who_stay_silent_hold_no_place_that_others_need(child):
    """Twice as many as there are places connect and say nothing, or half a request.

    A valid request is still answered at once.
    """
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(child.port)) for _ in range(2 * Limits().connections)]
        for one in silent[::2]:
            with contextlib.suppress(ConnectionError):  # it may have had to make room already
                one.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        assert [child.ask("/")[0] for _ in range(5)] == [200] * 5
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the oldest has made room"


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


def test_a_request_that_does_not_end_is_hung_up_on():
    def talk(port):
        assert raw(port, b"GET / HTTP/1.1\r\nHost: x") == b""

    in_a_loop(Limits(asking=1.0), b"hello", talk)


def test_an_answer_that_is_not_taken_is_hung_up_on():
    def talk(port):
        with connect(port) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            watch = select.poll()
            watch.register(slow, select.POLLRDHUP)
            assert watch.poll(LIMIT * 1000), "it still waits for us to read"

    in_a_loop(Limits(taking=0.05), b"a" * 50_000_000, talk)


def test_a_client_that_never_hangs_up_is_left():
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


def test_a_long_answer_arrives_whole():
    body = bytes(range(256)) * 20_000

    def talk(port):
        assert raw(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")[2] == body

    in_a_loop(Limits(), body, talk)


def test_a_page_that_fails_says_so_and_no_more(caplog):
    def talk(port):
        for _ in range(3):
            answer = raw(port, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status(answer) == 500
            assert b"canary-secret" not in answer

    in_a_loop(Limits(), b"", talk)
    assert len([record for record in caplog.records if "/broken failed" in record.getMessage()]) == 1


def test_a_flood_is_slowed_down_and_all_of_it_answered(monkeypatch):
    """With a purse that is always empty every connection costs a pause, and each is answered all the same."""
    pauses: list[float] = []

    class Empty(CpuBudget):
        def pause(self) -> float:
            pauses.append(0.001)
            return 0.001

    def talk(port):
        assert [status(raw(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")) for _ in range(50)] == [200] * 50

    in_a_loop(Limits(), b"hello", talk, Empty())
    assert len(pauses) >= 50


def test_the_budget_pauses_for_what_was_overspent_and_refills_with_time():
    now, used = [100.0], [5.0]
    budget = CpuBudget(clock=lambda: now[0], used=lambda: used[0])
    assert budget.pause() == 0
    assert not budget.is_strained()
    used[0] += 0.6
    assert budget.is_strained()
    assert budget.pause() == 0, "what was saved up may be spent"
    used[0] += 0.41
    assert budget.pause() == pytest.approx(0.1), "0.01 s too much is earned back in 0.1 s"
    now[0] += 0.1
    assert budget.pause() == pytest.approx(0, abs=1e-9)
    used[0] += 10
    assert budget.pause() == PAUSE, "never longer at a time: a probe must come through"
    now[0] += 1000
    assert not budget.is_strained()


# -- its life


def test_it_leaves_when_it_is_dismissed_and_not_when_it_is_nudged():
    with Web() as child:
        child.nudge()
        assert child.ask("/")[0] == 200
        assert child.boards[-1].now().phase is Phase.IDLE
        child.dismiss()
        assert child.boards[-1].now().phase is Phase.LEAVING
        with pytest.raises(ConnectionRefusedError):
            connect(child.port)


def test_it_leaves_while_people_are_connected():
    with Web() as child, connect(child.port) as slow:
        slow.sendall(b"GET /")
        child.ask("/")
        child.dismiss()


def test_a_port_that_is_taken_is_said_once_and_taken_when_it_is_free(monkeypatch):
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
        with Web(http=("127.0.0.1", port)) as child:  # READY all the same
            for _ in range(5):
                assert tries.acquire(timeout=LIMIT)
            assert "cannot listen" not in str(child.log.lines), "the supervisor logs it"
            holder.close()
            child.log.wait_for("metrics and health on")
            assert child.ask("/")[0] == 200
            assert not [report for report in child._heard if isinstance(report, pipes.Ready | pipes.Problem)], (
                "each is said once"
            )


def test_a_port_that_is_taken_is_reported_to_the_parent():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        child = Web(http=("127.0.0.1", holder.getsockname()[1]))
        child._thread.start()
        problem = child.wait_for(pipes.Problem)
        assert isinstance(problem, pipes.Problem)
        assert "cannot listen on 127.0.0.1" in problem.text
        assert "--http" in problem.text
        child.__dict__["_level"] = 0
        child.__exit__()


def test_a_host_that_does_not_exist_is_like_a_port_that_is_taken():
    child = Web(http=("nowhere.invalid", 1))
    child._thread.start()
    assert "nowhere.invalid:1" in child.wait_for(pipes.Problem).text
    child.__dict__["_level"] = 0
    child.__exit__()


def test_the_password_of_the_database_is_nowhere():
    with Web(NO_DATABASE) as child:
        seen = [str(child.ask(path)) for path in ("/", "/metrics", "/livez", "/readyz", "/startupz", "/x")]
        child.log.wait_for("metrics: the depth of the queues cannot be measured")
    assert "canary-secret" not in "".join(seen + child.log.lines)


def test_the_password_is_nowhere_when_the_dsn_itself_is_broken():
    with Web("host=localhost canary-secret") as child:
        assert child.ask("/metrics")[0] == 200
        child.log.wait_for("metrics: the depth of the queues cannot be measured")
    assert "canary-secret" not in "".join(child.log.lines)
