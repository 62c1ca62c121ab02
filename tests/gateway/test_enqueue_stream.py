"""EnqueueStream with a real supervisor: requests that arrive together share a transaction, but no failure."""

from __future__ import annotations

import select
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.gateway.caller import Caller, Rejected
from tests.gateway.conftest import TOKENS
from tests.gateway.test_producer import ids, job
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway.conftest import Served


@pytest.fixture
def client(served: Served) -> Iterator[Caller]:
    with Caller(served.where, token=TOKENS["all"]) as one:
        yield one


def test_stream_answers_each_request_and_continues_after_a_rejected_one(served: Served, client: Caller):
    stream = client.open("EnqueueStream")
    client.put(stream, number=1, jobs=[job("s:job"), job("s:job")], idempotency_key="s-1")
    client.put(stream, number=2, jobs=[job("s:job", priority=99999)])
    client.put(stream, number=3, jobs=[job("s:job"), job("s:job")], idempotency_key="s-1")
    one, two, three = (client.next(stream) for _ in range(3))
    assert [one["number"], two["number"], three["number"]] == ["1", "2", "3"]
    assert two["refused"].startswith("jobs[0]: priority")
    assert three == {**one, "number": "3", "already_enqueued": True}
    assert served.stage.call("SELECT count(*) FROM jobherd.jobs WHERE kind = 's:job'") == 2


@contextmanager
def held(served: Served, *keys: str) -> Iterator[None]:
    """Make requests with these keys wait."""
    with psycopg.connect(served.stage.dsn) as connection:
        for key in keys:
            connection.execute(
                "INSERT INTO jobherd.enqueue_keys (principal, key, digest) VALUES ('all', %s, '')", (key,)
            )
        yield
        connection.rollback()


def wait_blocked(served: Served, calls: int) -> None:
    """Return as soon as `calls` transactions wait. They wait at most 2 s, so query every 5 ms."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    until = time.monotonic() + LIMIT
    while served.stage.call(waits) != calls:
        assert time.monotonic() < until, f"not {calls} transactions wait for keys"
        select.select([], [], [], 0.005)


def test_requests_that_arrive_together_share_a_transaction_but_no_rejection(served: Served, client: Caller):
    stage = served.stage
    stage.run("ALTER TABLE jobherd.ready ADD CONSTRAINT t_never CHECK (kind <> 'never:stored')")
    stream = client.open("EnqueueStream")
    with held(served, "first"):
        client.put(stream, number=1, jobs=[job()], idempotency_key="first")
        wait_blocked(served, 1)
        for number in range(2, 60):
            client.put(stream, number=number, jobs=[job(payload={"n": number}), job(payload={"n": -number})])
        client.call("GetJob", id=client.call("Enqueue", jobs=[job()])["ids"][0])  # All requests have arrived by now.
    answers = [client.next(stream) for _ in range(1, 60)]
    assert [int(answer["number"]) for answer in answers] == list(range(1, 60))
    for answer in answers[1:]:
        numbers = [stage.job(each)["payload"]["n"] for each in ids(answer)]
        assert numbers == [int(answer["number"]), -int(answer["number"])]
    transactions = "SELECT count(DISTINCT xmin::text) FROM jobherd.ready WHERE payload::text <> '{}'"
    assert stage.call(transactions) < 30
    # One request that PostgreSQL rejects, one that is not valid, and one whose key was used for other jobs.
    with held(served, "second"):
        client.put(stream, number=60, jobs=[job()], idempotency_key="second")
        wait_blocked(served, 1)
        for number, jobs, key in (
            (61, [job()], ""),
            (62, [job(), job("never:stored")], ""),
            (63, [job(), job(priority=99999)], ""),
            (64, [job(), job()], "first"),
            (65, [job()], "third"),
        ):
            client.put(stream, number=number, jobs=jobs, idempotency_key=key)
        before = stage.call("SELECT count(*) FROM jobherd.ready")
    refused = {int(answer["number"]): answer.get("refused", "")[:26] for answer in map(client.next, [stream] * 6)}
    assert refused == {
        60: "",
        61: "",
        62: "PostgreSQL rejects these jobs"[:26],
        63: "jobs[1]: priority must be "[:26],
        64: "idempotency_key: an earlier"[:26],
        65: "",
    }
    assert stage.call("SELECT count(*) FROM jobherd.ready") == before + 3
    stage.run("ALTER TABLE jobherd.ready DROP CONSTRAINT t_never")


def test_streams_with_the_same_keys_in_another_order_do_not_deadlock(served: Served, client: Caller):
    stage = served.stage
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    streams = [(client.open("EnqueueStream"), keys) for keys in (("y", "m", "x"), ("x", "m", "y"))]
    with held(served, "m"):
        with held(served, "p", "q"):
            for (stream, keys), first in zip(streams, ("p", "q"), strict=True):
                client.put(stream, number=1, jobs=[job("k:job")], idempotency_key=first)
                for number, key in enumerate(keys, 2):
                    client.put(stream, number=number, jobs=[job("k:job")], idempotency_key=key)
            wait_blocked(served, 2)
        for stream, _ in streams:
            client.next(stream)
        wait_blocked(served, 2)
    found = [{key: ids(client.next(stream)) for key in keys} for stream, keys in streams]
    assert found[0] == found[1]
    assert stage.call(deadlocks) == 0
    assert stage.call("SELECT count(*) FROM jobherd.jobs WHERE kind = 'k:job'") == 5


def test_key_that_a_transaction_holds_rejects_only_its_own_request(served: Served, client: Caller):
    stream = client.open("EnqueueStream")
    with held(served, "open"):
        client.put(stream, number=1, jobs=[job("o:job")], idempotency_key="open")
        client.put(stream, number=2, jobs=[job("o:job")])
        one, two = client.next(stream), client.next(stream)
    assert one == {"number": "1", "refused": "another transaction holds a key of these jobs: send them again"}
    assert len(ids(two)) == 1
    client.put(stream, number=3, jobs=[job("o:job")], idempotency_key="open")
    assert len(ids(client.next(stream))) == 1


def test_committed_requests_are_answered_before_an_error_ends_the_stream(served: Served, client: Caller):
    """One request is rejected, so each request gets its own transaction. The last one fails with a database error."""
    stage = served.stage
    stage.run("ALTER TABLE jobherd.ready ADD CONSTRAINT t_never CHECK (kind <> 'never:stored')")
    stage.run("CREATE FUNCTION t_fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken'; END $$")
    stage.run(
        "CREATE TRIGGER t_fail BEFORE INSERT ON jobherd.ready FOR EACH ROW WHEN (NEW.kind = 'broken:job')"
        " EXECUTE FUNCTION t_fail()"
    )
    stream = client.open("EnqueueStream")
    with held(served, "fourth"):
        client.put(stream, number=1, jobs=[job()], idempotency_key="fourth")
        wait_blocked(served, 1)
        for number, kind in ((2, "c:job"), (3, "never:stored"), (4, "broken:job")):
            client.put(stream, number=number, jobs=[job(kind)])
        client.call("GetJob", id=client.call("Enqueue", jobs=[job()])["ids"][0])  # All requests have arrived by now.
    answers = [client.next(stream) for _ in range(3)]
    assert [answer.get("refused", "")[:26] for answer in answers] == ["", "", "PostgreSQL rejects these j"]
    assert stage.call("SELECT id FROM jobherd.ready WHERE kind = 'c:job'") == ids(answers[1])[0]
    with pytest.raises(Rejected) as caught:
        client.next(stream)
    assert caught.value.code == "UNAVAILABLE"
    stage.run("DROP FUNCTION t_fail CASCADE")
    stage.run("ALTER TABLE jobherd.ready DROP CONSTRAINT t_never")
