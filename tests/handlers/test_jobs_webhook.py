"""Webhook calls: the request, the meaning of the answers, and addresses that are not called."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from jobherd.handlers import jobs_webhook
from jobherd.handlers.jobs_webhook import Rules, deliver, sign
from jobherd.testing import run_payload

SECRET = "a secret of some length"
EVENT = {"id": 7, "state": "completed", "result": {"pages": 3}}


class Receiver(ThreadingHTTPServer):
    """Answers with the status and headers set on it, and stores the requests it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.headers, self.got = 200, {}, []
        self.url = f"http://127.0.0.1:{self.server_port}/done?by=us"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver():
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs_webhook, "find_end", lambda event: (event["to"], orjson.dumps(EVENT)))
    jobs_webhook.set_rules(Rules((SECRET,), ("127.0.0.0/8",), 5.0))
    yield
    jobs_webhook.set_rules(Rules())


def call(url: str, **fields: object):
    return run_payload(deliver, {"url": "https://for.people/", "event": {"to": url}}, **fields)


@pytest.mark.promise("D40")
def test_webhook_is_sent_as_signed_json(receiver: Receiver):
    ran = call(receiver.url, id=42, attempt=2)
    assert ran.result == {"status": 200}
    ((path, headers, body),) = receiver.got
    assert path == "/done?by=us"
    assert orjson.loads(body) == EVENT
    assert (headers["Content-Type"], headers["Jobherd-Delivery"], headers["Jobherd-Attempt"]) == (
        "application/json",
        "42",
        "2",
    )
    at, signature = (part.partition("=")[2] for part in headers["Jobherd-Signature"].split(","))
    assert signature == hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()


def test_webhook_is_signed_with_both_secrets_during_rotation():
    old, new = sign(b"{}", ("old" * 6, "new" * 6), at=5).split(",")[1:]
    assert [old, new] == [sign(b"{}", (secret * 6,), at=5).split(",")[1] for secret in ("old", "new")]
    assert sign(b"{}", ("old" * 6,), at=6) != sign(b"{}", ("old" * 6,), at=5), "the signature must include the time"


@pytest.mark.parametrize(
    ("status", "headers", "label", "code", "delay"),
    [
        (204, {}, "ok", None, None),
        (500, {}, "retry", "WEBHOOK_REFUSED", None),
        (302, {"Location": "http://169.254.169.254/"}, "retry", "WEBHOOK_REFUSED", None),
        (410, {}, "poison", "WEBHOOK_REFUSED", None),
        (429, {"Retry-After": "120"}, "retry", "NACK", 120.0),
        (503, {"Retry-After": "999999"}, "retry", "NACK", 3600.0),
        (503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "retry", "WEBHOOK_REFUSED", None),
    ],
)
def test_answer_of_the_receiver_decides_the_outcome(receiver: Receiver, status, headers, label, code, delay):
    receiver.status, receiver.headers = status, headers
    outcome = call(receiver.url).outcome
    assert (outcome.label, outcome.code) == (label, code)
    assert delay is None or outcome.delay == delay
    assert len(receiver.got) == 1, "a redirect must not be followed"


@pytest.mark.parametrize("address", [
    "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255",
    "::1", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "::", "2001:db8::1",
    "192.0.0.192", "192.0.0.9", "168.63.129.16", "192.88.99.1", "192.31.196.1", "192.52.193.1", "192.175.48.1", "198.18.0.1", "240.0.0.1",
    "::127.0.0.1", "::93.184.215.14", "::ffff:93.184.215.14", "::ffff:0:127.0.0.1", "fec0::1", "64:ff9b:1::7f00:1", "64:ff9b::7f00:1",
    "100::1", "100:0:0:1::1", "5f00::1", "3fff::1", "2001::1", "2001:20::1", "2001:1ff::1", "2002:5db8:d70e::1", "2620:4f:8000::1", "4000::1",
])  # fmt: skip
def test_private_addresses_are_not_called(address: str, monkeypatch: pytest.MonkeyPatch):
    jobs_webhook.set_rules(Rules((SECRET,)))
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", 443))
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [public, (kind, socket.SOCK_STREAM, 6, "", (address, 443))]
    )
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("a connection was opened"))
    outcome = call("https://innocent.example/done").outcome
    assert (outcome.label, outcome.code) == ("poison", "WEBHOOK_FORBIDDEN")
    assert address not in (outcome.error or ""), "the error must not disclose internal addresses"


@pytest.mark.parametrize(
    "address",
    [
        "93.184.215.14",
        "1.1.1.1",
        "192.0.1.1",
        "168.63.129.17",
        "2606:4700::1111",
        "2a00:1450::1",
        "2001:4860::8888",
        "64:ff9b::101:101",
    ],
)
def test_public_addresses_are_called(address: str, monkeypatch: pytest.MonkeyPatch):
    jobs_webhook.set_rules(Rules((SECRET,)))
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(kind, socket.SOCK_STREAM, 6, "", (address, 443))])
    connections: list[object] = []

    def refuse(where: tuple[str, int], _: float) -> socket.socket:
        connections.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert call("https://receiver.example/done").outcome.code == "WEBHOOK_UNREACHABLE"
    assert connections == [(address, 443)]


@pytest.mark.parametrize(
    "url", ["http://93.184.215.14/", "ftp://example.com/", "https://a:b@example.com/", "https:///x", "https://x:port/"]
)
def test_urls_with_an_invalid_scheme_user_host_or_port_are_not_called(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("a connection was opened"))
    assert call(url).outcome.code == "WEBHOOK_FORBIDDEN"


def test_connection_goes_to_the_address_that_was_checked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    jobs_webhook.set_rules(Rules((SECRET,), ("Hooks.Internal",)))
    looked = []

    def once(host: str, *_: object, **__: object):
        looked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(jobs_webhook.socket, "getaddrinfo", once)
    connections = []
    real = socket.socket.connect
    monkeypatch.setattr(socket, "create_connection", lambda at, limit: connections.append(at) or _connect(real, at))
    assert call(f"http://hooks.internal:{receiver.server_port}/").result == {"status": 200}
    assert (looked, connections) == (["hooks.internal"], [("127.0.0.1", receiver.server_port)])
    assert receiver.got[0][1]["Host"] == f"hooks.internal:{receiver.server_port}"


def _connect(connect, at):
    connection = socket.socket()
    connect(connection, at)
    return connection


def test_webhook_without_a_secret_is_not_sent(receiver: Receiver):
    jobs_webhook.set_rules(Rules((), ("127.0.0.1",)))
    outcome = call(receiver.url).outcome
    assert (outcome.label, outcome.code) == ("retry", "WEBHOOK_UNSIGNED")
    assert receiver.got == []


def test_unreachable_receiver_is_retried():
    with contextlib.closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))  # bound, but not listening
        outcome = call(f"http://127.0.0.1:{bound.getsockname()[1]}/").outcome
    assert (outcome.label, outcome.code) == ("retry", "WEBHOOK_UNREACHABLE")


def test_non_ascii_url_is_encoded_as_browsers_do(receiver: Receiver):
    """The enqueue call accepts such a URL. Without encoding, every attempt would fail."""
    assert call(receiver.url.replace("/done?", "/erledigt/über;a=%2F?für=€&")).result == {"status": 200}
    assert [path for path, _, _ in receiver.got] == ["/erledigt/%C3%BCber;a=%2F?f%C3%BCr=%E2%82%AC&by=us"]


def test_https_call_to_a_plain_http_server_fails(receiver: Receiver):
    assert call(receiver.url.replace("http:", "https:")).outcome.code == "WEBHOOK_UNREACHABLE"
    assert receiver.got == []
