"""The life of a stream: Hello, identity, permissions, and its end."""

from __future__ import annotations

import base64
import json
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.gateway.conftest import ACCESS, TOKENS, serve
from tests.gateway.remote import done, ids, reasons
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway.conftest import Served
    from tests.gateway.remote import Client, Stream
    from tests.support.fleet import Stage


@pytest.mark.promise("D2")
@pytest.mark.promise("D4")
@pytest.mark.promise("D16")
def test_one_stream_has_many_slots_and_one_session(served: Served, worker: Stream):
    jobs = served.stage.enqueue_many("s:slots", 64, queue="remote")
    numbers = [worker.ready("s:slots") for _ in jobs]
    tasks = [worker.tasks(number)[0] for number in numbers]
    assert sorted(ids(tasks)) == jobs
    row = "SELECT count(*) FROM jobherd.supervisors WHERE id = %s AND via IS NOT NULL AND principal = 'all'"
    assert served.stage.call(row, int(worker.session)) == 1
    held = "SELECT count(DISTINCT r.child), count(*) FROM jobherd.running r WHERE r.jobs[1].kind = 's:slots'"
    assert served.stage.run(held) == [(1, 64)]
    for task in reversed(tasks):
        worker.results(done(task))
    served.stage.wait_all(jobs, "completed")


@pytest.mark.promise("D9")
def test_hello_ack_returns_the_identity_permissions_and_limits_of_the_token(served: Served, client: Client):
    stream = client.stream(served.where)
    ack = stream.hello(token=TOKENS["some"])
    assert (ack["worker_id"], ack["tenant_id"]) == ("some", "acme"), "a worker without a name gets that of its token"
    assert (ack["kinds"], ack["queues"]) == (["some:*", "one"], ["remote"])
    assert (ack["session_seconds"] > 20, ack["lease_seconds"], ack["max_slots"]) == (True, 60, 1000)


@pytest.mark.promise("D7")
def test_hello_must_be_the_first_message_and_must_not_be_repeated(served: Served, client: Client, worker: Stream):
    stream = client.stream(served.where)
    stream.send(ready={"number": 1})
    assert stream.status() == ("FAILED_PRECONDITION", "the first message of a stream is Hello")
    worker.send(hello={"token": TOKENS["all"]})
    assert worker.status()[0] == "FAILED_PRECONDITION"


@pytest.mark.promise("D7")
def test_token_can_be_sent_in_the_metadata(served: Served, client: Client):
    stream = client.stream(served.where, ("authorization", f"Bearer {TOKENS['some']}"))
    assert stream.hello()["worker_id"] == "some"


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    ("token", "status"),
    [("", "UNAUTHENTICATED"), ("x" * 30, "UNAUTHENTICATED"), (TOKENS["producer"], "PERMISSION_DENIED")],
)
def test_missing_unknown_or_insufficient_token_ends_the_stream(served: Served, client: Client, token: str, status: str):
    stream = client.stream(served.where)
    stream.send(hello={"token": token})
    assert stream.status()[0] == status


@pytest.mark.promise("D8")
def test_ready_gets_only_jobs_of_allowed_kinds_queues_and_tenants(served: Served, client: Client):
    theirs = served.enqueue("some:a", tenant="other")
    elsewhere = served.enqueue("some:a", tenant="acme", queue="elsewhere")
    unnamed = served.enqueue("some:a")
    other = served.enqueue("s:other", tenant="acme")
    mine = [served.enqueue(kind, tenant="acme") for kind in ("one", "some:a", "some:b")]
    stream = client.stream(served.where)
    stream.hello(token=TOKENS["some"])
    tasks = [*stream.tasks(stream.ready("one", count=9)), *stream.tasks(stream.ready("some:*", "s:other", count=9))]
    assert ids(tasks) == mine
    assert {task["tenant"] for task in tasks} == {"acme"}
    stream.end(*map(done, tasks))
    waits = stream.ready(count=9)
    assert stream.beat()
    assert stream.heard("tasks") == [], "an empty filter does not mean every job"
    assert served.stage.states([theirs, elsewhere, unnamed, other]) == ["ready"] * 4
    stream.send(ready={"number": waits, "count": 0})
    assert stream.tasks(waits) == []


@pytest.mark.promise("D8")
def test_ready_for_a_forbidden_kind_or_queue_is_rejected_and_the_stream_continues(served: Served, client: Client):
    stream = client.stream(served.where)
    stream.hello(token=TOKENS["some"])
    number = stream.ready("s:other")
    refusal = stream.expect("refusal")
    assert (int(refusal["ready"]), refusal["reason"]) == (number, "REASON_NOT_ALLOWED")
    number = stream.ready("one", queues=["elsewhere"])
    assert int(stream.expect("refusal")["ready"]) == number
    assert stream.beat()


@pytest.mark.parametrize("name", ["a\0b", "x" * 3000, "Mail"])
def test_ready_with_an_invalid_name_is_rejected_and_does_not_affect_other_workers(
    served: Served, client: Client, worker: Stream, name: str
):
    bad = client.stream(served.where)
    bad.hello(token=TOKENS["all"])
    bad.ready(name)
    assert bad.expect("refusal")["reason"] == "REASON_INVALID"
    bad.ready("s:fine", queues=[name])
    assert bad.expect("refusal")["reason"] == "REASON_INVALID"
    served.enqueue("s:fine")
    worker.end(done(worker.task("s:fine")))


def test_messages_before_the_hello_ack_are_not_lost(served: Served, client: Client):
    job = served.enqueue("s:early")
    stream = client.stream(served.where)
    stream.send(hello={"token": TOKENS["all"]})
    number = stream.ready("s:early")
    beat = {"number": 7}
    stream.send(heartbeat=beat)
    stream.expect("hello_ack")
    assert stream.expect("heartbeat_ack")["number"] == "7"
    [task] = stream.tasks(number)
    assert ids([task]) == [job]
    stream.end(done(task))


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"token": TOKENS["all"], "session": "999999"}, "NOT_FOUND"),
        ({"token": TOKENS["all"], "session": "99999999999999999999999"}, "NOT_FOUND"),
        ({"token": TOKENS["all"], "session": "no"}, "NOT_FOUND"),
        ({"token": TOKENS["all"], "session": "-1"}, "NOT_FOUND"),
        ({"token": TOKENS["all"], "worker_id": "a\0"}, "INVALID_ARGUMENT"),
        ({"token": TOKENS["all"], "worker_id": "x" * 101}, "INVALID_ARGUMENT"),
        ({"token": TOKENS["all"], "max_message_bytes": 100}, "INVALID_ARGUMENT"),
        ({"token": TOKENS["all"], "kinds": [{"kind": "a", "backoff_jitter": 7}]}, "INVALID_ARGUMENT"),
    ],
)
def test_invalid_hello_ends_the_stream(served: Served, client: Client, message: dict[str, object], status: str):
    stream = client.stream(served.where)
    stream.send(hello=message)
    assert stream.status()[0] == status
    fresh = client.stream(served.where)
    assert fresh.hello(token=TOKENS["all"])


def test_bytes_that_are_not_a_message_end_only_their_stream(served: Served, client: Client, worker: Stream):
    for data in (b"\xff\xff\xff", b"\x0a\x05ab"):
        bad = client.stream(served.where)
        bad.hello(token=TOKENS["all"])
        bad.do("raw", data=base64.b64encode(data).decode())
        assert bad.status()[0] == "INVALID_ARGUMENT"
    assert worker.beat()
    assert not served.fleet.said(lambda event: "DecodeError" in str(event))


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 10_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100],
    ids=["http1", "bytes", "frames"],
)
def test_bytes_that_are_not_frames_end_only_their_connection(served: Served, worker: Stream, data: bytes):
    host, _, port = served.where.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT) as bad, suppress(ConnectionError):
        bad.sendall(data)
        while bad.recv(65536):
            pass
    assert worker.beat()
    assert not served.fleet.said("an error of Jobherd's own")


def test_stream_that_floods_the_gateway_does_not_block_another_stream(served: Served, client: Client, worker: Stream):
    most = 3000
    flood = client.stream(served.where)
    flood.hello(token=TOKENS["all"])
    flood.do("hold")
    for number in range(1, most + 1):
        flood.send(heartbeat={"number": number, "tasks": [{"task_id": 1, "claim": number}]})
    served.enqueue("s:calm")
    worker.end(done(worker.task("s:calm")))
    flood.do("read")
    last = flood.expect("heartbeat_ack", lambda ack: int(ack["number"]) == most)
    assert last["lost"] == [{"task_id": "1", "claim": str(most)}], "no message was dropped"


def test_message_that_is_too_large_ends_only_its_stream(served: Served, client: Client, worker: Stream):
    bad = client.stream(served.where)
    bad.hello(token=TOKENS["all"])
    bad.send(progress={"note": "x" * (9 << 20)})
    assert bad.status()[0] == "RESOURCE_EXHAUSTED"
    assert worker.beat()


def test_unknown_fields_of_a_newer_client_are_ignored(served: Served, worker: Stream):
    worker.do("raw", data=base64.b64encode(b"\xfa\x06\x03new").decode())
    worker.do("raw", data="")
    assert worker.beat()


def test_repeated_number_of_a_message_ends_the_stream(served: Served, client: Client):
    for message in ({"ready": {"number": 1, "count": 1, "kinds": ["s:none"]}}, {"results": {"number": 1}}):
        stream = client.stream(served.where)
        stream.hello(token=TOKENS["all"])
        for _ in range(2):
            stream.send(**message)
        assert stream.status()[0] == "INVALID_ARGUMENT"


def test_more_slots_than_allowed_end_the_stream(served: Served, worker: Stream):
    for _ in range(3):
        worker.ready("s:none", count=500)
    assert worker.status()[0] == "RESOURCE_EXHAUSTED"


def test_session_of_another_principal_cannot_be_resumed(served: Served, client: Client, worker: Stream):
    job = served.enqueue("s:guessed")
    task = worker.task("s:guessed")
    thief = client.stream(served.where)
    thief.send(hello={"token": TOKENS["other"], "session": worker.session})
    assert thief.status()[0] == "PERMISSION_DENIED"
    assert worker.beat(), "the stream of the session continues"
    other = client.stream(served.where)
    other.hello(token=TOKENS["other"])
    assert reasons(other.end(done(task))) == {job: "REASON_LOST"}
    assert "refusals" not in worker.end(done(task))


@pytest.mark.promise("D28")
@pytest.mark.promise("D29")
def test_client_that_stops_reading_gets_no_more_tasks_and_loses_none(served: Served, client: Client):
    # Random data, because PostgreSQL compresses other data, which then counts as less.
    jobs = [served.enqueue("s:slow", json.dumps({"x": os.urandom(450_000).hex()})) for _ in range(50)]
    slow = client.stream(served.where)
    slow.hello(token=TOKENS["all"])
    slow.do("hold")
    numbers = [slow.ready("s:slow", count=1) for _ in jobs]
    served.stage.wait(lambda: served.stage.census(jobs).get("running", 0) > 0, "a claim")
    brisk = client.stream(served.where)
    brisk.hello(token=TOKENS["all"])
    served.enqueue("s:brisk")
    brisk.end(done(brisk.task("s:brisk")))
    assert served.stage.census(jobs)["ready"] > 20, "no more jobs are claimed for the slow client"
    slow.do("read")
    tasks = [slow.tasks(number)[0] for number in numbers]
    assert sorted(ids(tasks)) == jobs
    slow.end(*map(done, tasks))
    assert served.stage.census(jobs) == {"completed": 50}


def test_withdrawn_token_ends_only_its_own_streams(stage: Stage, client: Client, tmp_path: Path):
    access = tmp_path / "access.toml"
    access.write_text(ACCESS)
    served = serve(stage, gateway_access=access)
    streams = {}
    for name in ("all", "other"):
        streams[name] = client.stream(served.where)
        streams[name].hello(token=TOKENS[name])
    access.write_text(ACCESS.replace("[principals.other]", "[principals.other]\nrole = 'enqueue'"))
    assert streams["other"].status()[0] == "UNAUTHENTICATED"
    assert streams["all"].beat()
    again = client.stream(served.where)
    again.send(hello={"token": TOKENS["other"]})
    assert again.status()[0] == "PERMISSION_DENIED"
