"""A session that waits for a job is notified of its end, whatever ends it. Without such a session nothing notifies."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from jobherd import AsyncClient, Client
from jobherd.handlers._enqueue import waiting as _waiting
from jobherd.handlers._enqueue.answer_deadline import aanswered
from jobherd.handlers._values.outcome import OK
from jobherd.sql.migrate import migrate
from jobherd.workers.job.finished import Finished, settlement
from tests.support.network import Network
from tests.support.patience import LIMIT
from tests.support.queue import Line, Queue
from tests.support.remote import Gateway

CLASS = 1785684585
NEVER = (300.0, 300.0)
ENDS = {
    "ok": "completed",
    "failed": "failed",
    "poison": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
    "whole": "completed",
    "nothing kept": "completed",
    "remote": "completed",
    "recover/requeue_child": "cancelled",
    "recover/requeue_orphans": "failed",
    "recover/requeue_unacknowledged": "cancelled",
    "reclaim": "failed",
    "leave": "cancelled",
    "cancel": "cancelled",
    "delete": "cancelled",
}


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def ears(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("LISTEN jobherd_done")
        yield connection


@pytest.fixture
def looks_often(monkeypatch):
    """Let a waiting client query again at once, and treat a silent connection as dead soon."""
    monkeypatch.setattr(_waiting, "BACKSTOP", (0.01, 0.01))
    monkeypatch.setattr(_waiting, "SILENCE", 0.2)
    monkeypatch.setattr(_waiting, "GRACE", 0.2)


@pytest.fixture
def never_looks(monkeypatch):
    """Let a waiting client query again only after 300 s, so that only a notification can end the wait."""
    monkeypatch.setattr(_waiting, "BACKSTOP", NEVER)


def heard(connection):
    """Return the notifications so far. They arrive in the order of the commits."""
    connection.execute("NOTIFY jobherd_done, 'so far'")
    words = set()
    for note in connection.notifies(timeout=LIMIT):
        if note.payload == "so far":
            return words
        whose, *told = note.payload.split()
        assert whose == "jobherd."
        words |= set(told)
    raise AssertionError("it does not hear itself")


def announce(connection, *ids):
    connection.execute("SELECT pg_advisory_unlock_all()")
    connection.execute(_text("wake/announce_wait"), {"ids": list(ids)})


def _text(name):
    from jobherd import sql

    return sql.load(name)


def end(queue, how):
    """End a job in the given way. Return its id."""
    number = queue.enqueue("a:b", max_attempts=1)
    if how in {"cancel", "delete"}:
        queue.run("SELECT jobherd.cancel(%s)" if how == "cancel" else "DELETE FROM jobherd.jobs WHERE id = %s", number)
        return number
    if how == "remote":
        gateway = Gateway(queue)
        session = gateway.open()
        (dealt,) = gateway.claim((session, 1))
        assert gateway.settle_claims((session, dealt.token, [number]))
        return number
    child = queue.child()
    (job,) = child.claim(1)
    line = Line(child.connection, child.id)
    match how:
        case "whole" | "nothing kept":
            done = Finished(number, OK, ran=0.1, keep=0 if how == "nothing kept" else 7)
            assert line.run("settle/settle_completed", settlement(child.id, job.token, [done], ran_on="h", now=1.0))
        case "recover/requeue_child":
            queue.cancel(number)
            child.release()
        case "recover/requeue_orphans":
            queue.run("DELETE FROM jobherd.children")
            assert queue.orphans() == [number]
        case "recover/requeue_unacknowledged":
            queue.cancel(number)
            line.run("recover/requeue_unacknowledged", {"child": child.id, "known_tokens": []})
        case "reclaim":
            assert queue.supervisor().reclaim(dead=[child.supervisor]) == (1, 1)
        case "leave":
            queue.cancel(number)
            queue.connection.execute(queue.text("recover/unregister_supervisor"), {"supervisor": child.supervisor})
        case _:
            assert child.settle(job.token, [number], how, error="why") == [number]
    return number


def told_of_each_end(database, ears, *, announced):
    """Return the notifications for each way to end a job. `N` stands for the job's id."""
    found = {}
    for how in ENDS:
        with Queue(database) as queue, psycopg.connect(database, autocommit=True) as waiter:
            if announced:
                announce(waiter, *range(64))
            number = end(queue, how)
            found[how] = {word.replace(str(number), "N") for word in heard(ears)}
    return found


@pytest.mark.promise("C16")
def test_each_way_to_end_a_job_notifies_its_waiters(database, ears):
    assert told_of_each_end(database, ears, announced=True) == {how: {f"N={state}"} for how, state in ENDS.items()}


def test_without_waiters_only_cancel_and_delete_notify(database, ears):
    told = told_of_each_end(database, ears, announced=False)
    assert told.pop("cancel") == told.pop("delete") == {"N=cancelled"}, (
        "these always notify, see sql/schema/05_wake.sql"
    )
    assert set().union(*told.values()) == set()


def test_settlement_notifies_only_of_ids_that_match_a_waiters_key(queue, ears, database):
    ids = queue.enqueue_many("a:b", 300)
    with psycopg.connect(database, autocommit=True) as waiter:
        announce(waiter, ids[5], ids[250])
        child = queue.child()
        jobs = child.claim(300)
        child.settle(jobs[0].token, ids, "ok")
    told = {int(word.partition("=")[0]) for word in heard(ears)}
    assert {ids[5], ids[250]} <= told
    assert {number & 63 for number in told} == {ids[5] & 63, ids[250] & 63}


def test_outcomes_that_do_not_end_a_job_do_not_notify(queue, ears):
    ids = queue.enqueue_many("a:b", 3)
    with psycopg.connect(queue.dsn, autocommit=True) as waiter:
        announce(waiter, *ids)
        child = queue.child()
        jobs = child.claim(3)
        for number, outcome in zip(ids, ["retry", "snoozed", "abandoned"], strict=True):
            assert child.settle(jobs[0].token, [number], outcome, delay=10.0) == [number]
    assert heard(ears) == set()


def test_1000_ends_at_once_are_all_notified(queue, ears):
    ids = queue.enqueue_many("a:b", 1000)
    with psycopg.connect(queue.dsn, autocommit=True) as waiter:
        announce(waiter, *ids)
        child = queue.child()
        jobs = child.claim(1000)
        child.settle(jobs[0].token, ids, "cancelled")
    assert heard(ears) == {f"{number}=cancelled" for number in ids}


def test_settlement_keeps_no_advisory_lock(queue):
    number = queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    child.settle(job.token, [number], "ok")
    assert queue.run("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s", CLASS) == [(0,)]


def waiters(queue):
    return queue.run("SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s", CLASS)[0][
        0
    ]


def blocked(queue):
    return queue.run("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0]


def in_a_thread(work):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    return thread, answers


def until(condition):
    while not condition():
        threading.Event().wait(0.002)


@pytest.mark.promise("D19")
def test_waiting_client_is_notified_and_does_not_poll(queue, never_looks):
    ids = queue.enqueue_many("a:b", 3)
    with Client(queue.dsn) as client:
        thread, answers = in_a_thread(lambda: client.wait_many([ids[2], ids[0]], timeout=60))
        until(lambda: waiters(queue) == 1)
        child = queue.child()
        jobs = child.claim(3)
        child.settle(jobs[0].token, [ids[0]], "ok", result='{"n": 1}')
        child.settle(jobs[0].token, [ids[2]], "failed", error="why", code="NO")
        thread.join()
    (found,) = answers
    assert list(found) == [ids[2], ids[0]]
    assert (found[ids[0]]["state"], found[ids[0]]["result"]) == ("completed", {"n": 1})
    assert (found[ids[2]]["state"], found[ids[2]]["error_code"]) == ("failed", "NO")
    until(lambda: waiters(queue) == 0)


def test_client_waits_for_a_settlement_that_checked_before_there_was_a_waiter(queue, never_looks):
    number = queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    with Client(queue.dsn) as client, child.connection.transaction():
        child.settle(job.token, [number], "ok")
        thread, answers = in_a_thread(lambda: client.wait(number, timeout=60))
        until(lambda: blocked(queue))
    thread.join()
    assert answers[0]["state"] == "completed"


def test_waiters_do_not_block_the_settlement_of_a_running_job(queue, never_looks):
    number = queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    with Client(queue.dsn) as client:
        waiting = [in_a_thread(lambda: client.wait(number, timeout=60)) for _ in range(3)]
        until(lambda: waiters(queue) == 3)
        child.settle(job.token, [number], "ok")
        for thread, answers in waiting:
            thread.join()
            assert answers[0]["state"] == "completed"


def test_long_transaction_of_a_reading_role_blocks_no_settlement(queue):
    child = queue.child()
    jobs = queue.enqueue_many("a:b", 3)
    assert len(child.claim(3)) == 3
    with psycopg.connect(queue.dsn) as watcher:
        watcher.execute("SET ROLE jobherd_read")
        watcher.execute(_text("wake/wait_for_settlements"), {"ids": jobs})
        queue.run("SELECT FROM jobherd.running FOR UPDATE NOWAIT")


def test_end_of_a_job_that_is_not_kept_is_notified(queue, never_looks):
    number = queue.enqueue("a:b")
    child = queue.child()
    with Client(queue.dsn) as client:
        thread, answers = in_a_thread(lambda: client.wait(number, timeout=60))
        until(lambda: waiters(queue) == 1)
        (job,) = child.claim(1)
        child.settle(job.token, [number], "ok", keep=0)
        thread.join()
    assert (answers[0]["state"], answers[0]["kind"]) == ("completed", "a:b")
    assert queue.state(number) is None


def test_notification_after_the_query_that_misses_the_job_still_counts(queue, monkeypatch):
    number = queue.enqueue("a:b")
    child = queue.child()
    held, looked = [], []
    heard, found = _waiting.CompletionWait.on_notification, _waiting.CompletionWait.found

    def hold_back(vigil, message):
        held.append(message)

    def let_go_once_missed(vigil, looked_at, rows):
        found(vigil, looked_at, rows)
        looked.append(set(rows))
        if not rows:
            for message in held:
                heard(vigil, message)

    monkeypatch.setattr(_waiting, "BACKSTOP", (0.01, 0.01))
    monkeypatch.setattr(_waiting, "LATE", 600.0)
    monkeypatch.setattr(_waiting.CompletionWait, "on_notification", hold_back)
    monkeypatch.setattr(_waiting.CompletionWait, "found", let_go_once_missed)
    with Client(queue.dsn) as client:
        thread, answers = in_a_thread(lambda: client.wait(number, timeout=60))
        until(lambda: waiters(queue) == 1)
        (job,) = child.claim(1)
        child.settle(job.token, [number], "ok", keep=0)
        thread.join()
    assert (answers[0]["state"], answers[0]["kind"]) == ("completed", "a:b")
    assert set() in looked


def test_end_of_a_job_with_the_same_id_in_another_schema_is_ignored(queue, never_looks):
    migrate(queue.connection, schema="other")
    number = queue.enqueue("a:b")
    [[theirs]] = queue.run("SELECT setval('other.job_ids', %s, false)", number)
    assert queue.run("SELECT other.enqueue('a:b')") == [(theirs,)] == [(number,)]
    child = queue.child()
    with Client(queue.dsn) as client:
        thread, answers = in_a_thread(lambda: client.wait(number, timeout=60))
        until(lambda: waiters(queue) == 1)
        (job,) = child.claim(1)
        with child.connection.transaction():  # both notifications arrive at once
            child.settle(job.token, [number], "ok", keep=0)
            child.connection.execute("SELECT other.cancel(%s)", [theirs])
        thread.join()
    assert answers[0]["state"] == "completed"


@pytest.mark.parametrize("deaf", [True, False])
def test_missing_job_without_a_notification_raises_lookup_error(monkeypatch, deaf):
    monkeypatch.setattr(_waiting, "LATE", 600.0)
    vigil = _waiting.CompletionWait([7], None, schema="jobherd", can_listen=not deaf)
    vigil.found(vigil.due(), {7: {"id": 7, "state": "running"}})
    if deaf:
        # a session that does not listen need not wait for a notification
        with pytest.raises(LookupError, match="job 7 is gone, and its kind keeps no record"):
            vigil.found([7], {})
        return
    vigil.found([7], {})
    assert 7 in vigil.left
    monkeypatch.setattr(_waiting.time, "monotonic", lambda start=time.monotonic(): start + 601)
    assert vigil.due() == [7]
    with pytest.raises(LookupError, match="job 7 not found"):
        vigil.found([7], {})


def stalled(network):
    """Drop all data of the client's sessions, but acknowledge each packet."""
    assert network.stall("jobherd client")


@pytest.mark.parametrize("asked", ["before", "while it waits"])
@pytest.mark.parametrize("coroutine", [False, True])
def test_client_replaces_a_session_that_stops_answering(queue, looks_often, asked, coroutine):
    """Regression: the client waited indefinitely for the answer to its query."""
    number = queue.enqueue("a:b")

    async def wait(client):
        await client.job(number)
        if asked == "before":
            await asyncio.to_thread(stalled, network)
        return await client.wait(number, LIMIT)

    with Network(queue.dsn) as network:
        if coroutine:
            thread, answers = in_a_thread(lambda: asyncio.run(wait(AsyncClient(network.dsn))))
        else:
            client = Client(network.dsn)
            client.job(number)
            if asked == "before":
                stalled(network)
            thread, answers = in_a_thread(lambda: client.wait(number, LIMIT))
        until(lambda: waiters(queue) == 1)
        if asked == "while it waits":
            stalled(network)
        queue.cancel(number)
        thread.join(2 * LIMIT)
        assert answers[0]["state"] == "cancelled"
        if not coroutine:
            client.close()


@pytest.mark.parametrize("coroutine", [False, True])
def test_wait_times_out_on_a_connection_that_stops_answering(queue, looks_often, monkeypatch, coroutine):
    monkeypatch.setattr(_waiting, "SILENCE", 2 * LIMIT)
    number = queue.enqueue("a:b")

    async def wait():
        async with AsyncClient(network.dsn) as client:
            await client.job(number)
            await asyncio.to_thread(stalled, network)
            await client.wait(number, timeout="0.1s")

    with (
        Network(queue.dsn) as network,
        pytest.raises(TimeoutError, match=f"the state of job {number} is not known: the database does not answer"),
    ):
        if coroutine:
            asyncio.run(wait())
        else:
            with Client(network.dsn) as client:
                client.job(number)
                stalled(network)
                client.wait(number, timeout="0.1s")


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("silent", ["the database", "where one listens"])
def test_wait_times_out_while_a_session_is_opened(queue, monkeypatch, silent, coroutine):
    """For a server that accepts a connection and sends nothing, the driver waits 130 s and the pool 30 s."""
    number = queue.enqueue("a:b")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        there = f"host=127.0.0.1 port={nobody.getsockname()[1]} sslmode=disable"
        monkeypatch.setenv("JOBHERD_DSN", f"{there} connect_timeout=2" if silent == "the database" else queue.dsn)
        monkeypatch.setenv("JOBHERD_LISTEN_DSN", there)

        async def wait():
            async with AsyncClient() as client:
                await client.wait(number, timeout="0.1s")

        known = (
            f"the state of job {number} is not known" if silent == "the database" else f"job {number} is still ready"
        )
        with pytest.raises(TimeoutError, match=known):
            if coroutine:
                asyncio.run(wait())
            else:
                with Client() as client:
                    client.wait(number, timeout="0.1s")


def test_wait_without_a_timeout_raises_the_drivers_connection_timeout(queue, monkeypatch):
    number = queue.enqueue("a:b")
    monkeypatch.setenv("JOBHERD_DSN", queue.dsn)
    with socket.create_server(("127.0.0.1", 0)) as nobody, Client() as client:
        monkeypatch.setenv(
            "JOBHERD_LISTEN_DSN", f"host=127.0.0.1 port={nobody.getsockname()[1]} sslmode=disable connect_timeout=2"
        )
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            client.wait(number)


def test_coroutine_that_waits_on_a_stalled_connection_can_be_canceled(database):
    """Regression: the error of the ended session replaced the cancellation, which was lost."""

    async def wait():
        async with await psycopg.AsyncConnection.connect(network.dsn, application_name="jobherd client") as connection:

            async def ask():
                with aanswered(connection, 0.2):
                    try:
                        await connection.execute("SELECT 1")
                    except asyncio.CancelledError:
                        raise psycopg.OperationalError from None  # as psycopg 3.2 does

            await asyncio.to_thread(stalled, network)
            task = asyncio.create_task(ask())
            await asyncio.to_thread(until, lambda: connection.pgconn.transaction_status == TransactionStatus.ACTIVE)
            task.cancel()
            await asyncio.wait([task], timeout=LIMIT)
            assert task.cancelled()

    with Network(database) as network:
        asyncio.run(wait())


def test_async_client_waits_for_many_jobs_at_once(queue, never_looks):
    ids = queue.enqueue_many("a:b", 2)
    child = queue.child()

    async def work():
        async with AsyncClient(queue.dsn) as client:
            waiting = [
                asyncio.create_task(client.wait_many(ids, timeout=60)),
                asyncio.create_task(client.wait(ids[0], timeout=60)),
            ]
            await asyncio.to_thread(until, lambda: waiters(queue) == 2)
            jobs = child.claim(2)
            child.settle(jobs[0].token, ids, "ok")
            many, one = await asyncio.gather(*waiting)
            assert [row["state"] for row in many.values()] == ["completed"] * 2
            assert one["id"] == ids[0]

    asyncio.run(work())


def test_wait_error_names_the_jobs(queue):
    one, other = queue.enqueue_many("a:b", 2)
    with Client(queue.dsn) as client:
        assert client.wait_many([]) == {}
        with pytest.raises(TimeoutError, match=f"jobs {one}, {other} are still ready"):
            client.wait_many([one, other], timeout=0)
        with pytest.raises(LookupError, match="job 77, 78 not found"):
            client.wait_many([one, 77, 78])
        with pytest.raises(TypeError, match="a job's id is a whole number, not a str"):
            client.wait_many(["7"])
    with psycopg.connect(queue.dsn, autocommit=True) as mine:
        client = Client(connection=mine)
        with pytest.raises(TimeoutError):
            client.wait(one, timeout="30ms")
        queue.cancel(one)
        assert client.wait(one, timeout=60)["state"] == "cancelled"


@pytest.mark.promise("B50", "B51", "B52")
def test_delete_cancels_unfinished_jobs_and_removes_finished_ones(queue):
    waiting, running, over = queue.enqueue_many("a:b", 3)
    child = queue.child()
    jobs = child.claim(3)
    child.settle(jobs[0].token, [over], "ok")
    child.settle(jobs[0].token, [waiting], "snoozed", delay=60.0)
    assert (
        queue.connection.execute(
            "DELETE FROM jobherd.jobs WHERE id = ANY (%s)", [[waiting, running, over, 77]]
        ).rowcount
        == 3
    )
    assert queue.states([waiting, running, over]) == ["cancelled", "running", None]
    assert queue.run("SELECT job FROM jobherd.cancels") == [(running,)]
    child.settle(jobs[0].token, [running], "cancelled", error="cancelled", code="JOB_CANCELLED")
    assert queue.cancel(running) == "cancelled"
    queue.run("DELETE FROM jobherd.jobs")
    assert queue.count("jobs") == queue.count("attempts") == 0
