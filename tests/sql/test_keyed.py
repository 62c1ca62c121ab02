"""A second enqueue changes the waiting job: replaced, collected, debounced and throttled jobs."""

from __future__ import annotations

import threading
from datetime import timedelta

import psycopg
import pytest

from jobherd import Client, Unique, enqueue_on
from tests.sql.test_unique import await_blocked
from tests.support.patience import LIMIT
from tests.support.queue import Queue

REPLACE = Unique(by=("n",), conflict="replace")
COLLECT = Unique(by=("n",), conflict="collect", collect="items")


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def client(queue):
    return Client(connection=queue.connection)


def put(client, n=1, **rest):
    options = {name: rest.pop(name) for name in list(rest) if name not in {"text", "items"}}
    return client.enqueue("a:b", {"n": n, **rest}, **{"unique": REPLACE, **options})


def in_tables(queue, job):
    return [
        table
        for table in ("ready", "scheduled", "parked")
        for _ in queue.run(f"SELECT 1 FROM jobherd.{table} WHERE id = %s", job)
    ]


@pytest.mark.parametrize("table", ["ready", "scheduled", "parked"])
def test_replace_gives_a_waiting_job_the_new_payload_and_options(client, queue, table):
    first = put(client, text="a", delay="1h" if table == "scheduled" else None, max_attempts=2)
    if table == "parked":
        queue.run("WITH job AS (DELETE FROM jobherd.ready RETURNING *) INSERT INTO jobherd.parked SELECT * FROM job")
    second = put(client, text="b", priority=-3, queue="other", timeout="5s")
    assert (second, second.new) == (first, False)
    job = client.job(first)
    assert job is not None
    assert [job[name] for name in ("payload", "priority", "queue", "timeout", "state")] == [
        {"n": 1, "text": "b"}, -3, "other", 5.0, "ready"
    ]  # fmt: skip
    assert in_tables(queue, first) == ["ready"]
    assert queue.run("SELECT max_attempts, run_at > created_at FROM jobherd.ready") == [(None, True)]
    assert queue.child().claim(5, ["other"])[0].id == first


@pytest.mark.parametrize("unique", [REPLACE, COLLECT])
def test_started_job_is_not_changed_and_a_new_job_takes_its_key(client, queue, unique):
    first = put(client, unique=unique, items=[1])
    child = queue.child()
    [job] = child.claim(1)
    second = put(client, unique=unique, items=[2])
    assert second.new
    assert put(client, unique=unique, items=[3]) == second
    child.settle(job.token, [first], "retry", delay=60.0, error="why", code="NO")
    assert put(client, unique=unique, items=[4]) == second  # not the one that waits for its retry
    row = client.job(first)
    assert row is not None
    assert row["payload"]["items"] == [1]


def test_lists_are_collected_until_they_are_full(client, queue):
    first = put(client, unique=COLLECT, items=[1, 2], priority=4)
    assert put(client, unique=COLLECT, items=[{"a": None}], priority=9) == first
    row = client.job(first)
    assert row is not None
    assert (row["payload"], row["priority"]) == ({"n": 1, "items": [1, 2, {"a": None}]}, 4)
    assert put(client, unique=COLLECT, items=list(range(9_997))) == first
    later = put(client, unique=COLLECT, items=[0])
    assert later.new
    assert in_tables(queue, first) == in_tables(queue, later) == ["ready"]
    assert put(client, unique=COLLECT, items=["x" * 999_000]) == later
    assert put(client, unique=COLLECT, items=["x" * 2_000]).new


def test_enqueue_many_collects_the_items_of_all_payloads(client):
    found = client.enqueue_many("a:b", ({"n": n % 2, "items": [n]} for n in range(6)), unique=COLLECT)
    assert [job.new for job in found] == [True, True, False, False, False, False]
    assert found[0] == found[2] == found[4]
    rows = [client.job(job)["payload"]["items"] for job in found[:2]]
    assert rows == [[0, 2, 4], [1, 3, 5]]


def times(queue, job):
    return queue.run("SELECT run_at - created_at, run_at - now() FROM jobherd.scheduled WHERE id = %s", job)[0]


def test_debounced_job_waits_after_the_last_enqueue_but_at_most_max_wait(client, queue):
    first = put(client, text="a", debounce="30s", max_wait="5m")
    assert times(queue, first)[0] == timedelta(seconds=30)
    queue.run(
        "UPDATE jobherd.scheduled SET created_at = created_at - interval '1 minute', run_at = now() + interval '1 s'"
    )
    assert put(client, text="b", debounce="30s", max_wait="5m") == first
    assert timedelta(seconds=89) < times(queue, first)[0] < timedelta(seconds=150)
    queue.run("UPDATE jobherd.scheduled SET created_at = now() - interval '290 s'")
    assert put(client, text="c", debounce="30s", max_wait="5m") == first
    assert times(queue, first)[0] == timedelta(minutes=5)
    queue.run("UPDATE jobherd.scheduled SET created_at = now() - interval '301 s'")
    assert put(client, text="d", debounce="30s", max_wait="5m") == first
    assert in_tables(queue, first) == ["ready"]
    assert client.job(first)["payload"]["text"] == "d"


def test_a_leading_throttle_keeps_the_first_job(client, queue):
    by = {"unique": ("n",), "throttle": "1m"}
    first = put(client, text="a", **by)
    queue.cancel(first)
    assert put(client, text="b", **by) == first
    queue.run("UPDATE jobherd.keys SET until = clock_timestamp()")
    assert put(client, text="c", **by).new


def test_a_trailing_throttle_keeps_the_time_and_takes_the_newest_payload(client, queue):
    by = {"unique": ("n",), "throttle": "1m", "edge": "trailing"}
    first = put(client, text="a", **by)
    assert times(queue, first)[0] == timedelta(minutes=1)
    before = queue.run("SELECT run_at FROM jobherd.scheduled")
    assert put(client, text="b", **by) == first
    assert queue.run("SELECT run_at FROM jobherd.scheduled") == before
    assert client.job(first)["payload"]["text"] == "b"


@pytest.mark.parametrize("commits", [True, False])
def test_second_enqueue_waits_for_the_transaction_of_the_first(client, queue, commits):
    found = []
    with psycopg.connect(queue.dsn) as first, psycopg.connect(queue.dsn, autocommit=True) as watch:
        held = enqueue_on(first, "a:b", {"n": 1, "text": "a"}, unique=REPLACE)
        thread = threading.Thread(target=lambda: found.append(put(client, text="b")))
        thread.start()
        await_blocked(watch, queue.connection.info.backend_pid)
        first.commit() if commits else first.rollback()
    thread.join(LIMIT)
    assert [(job == held, job.new) for job in found] == [(commits, not commits)]
    assert queue.run("SELECT payload ->> 'text' FROM jobherd.ready") == [("b",)]


def test_job_claimed_during_an_enqueue_keeps_running_and_a_new_job_is_enqueued(client, queue):
    """The enqueue finds a row that an uncommitted claim has locked. It waits for the claim."""
    first = put(client, text="a")
    child = queue.child()
    found = []
    with psycopg.connect(queue.dsn, autocommit=True) as watch:
        child.connection.autocommit = False
        child.claim(1)
        thread = threading.Thread(target=lambda: found.append(put(client, text="b")))
        thread.start()
        await_blocked(watch, queue.connection.info.backend_pid)
        child.connection.commit()
    thread.join(LIMIT)
    assert [(job != first, job.new) for job in found] == [(True, True)]
    assert queue.state(first) == "running"


def test_a_claim_does_not_wait_for_an_enqueue_that_changes_the_job(client, queue):
    put(client, text="a")
    with psycopg.connect(queue.dsn) as own:
        enqueue_on(own, "a:b", {"n": 1, "text": "b"}, unique=REPLACE)
        child = queue.child()
        child.connection.execute("SET lock_timeout = '1ms'")
        assert child.claim(5) == []
    assert len(child.claim(5)) == 1


def test_a_tenant_changes_no_job_of_another_tenant(client):
    first = put(client, text="a", tenant="acme")
    assert put(client, text="b", tenant="globex").new
    assert client.job(first)["payload"]["text"] == "a"


def ask(queue, options, payload='{"n": 1, "doc": {"id": 3}}'):
    return queue.run("SELECT jobherd.enqueue('a:b', %s::jsonb, %s::jsonb)", payload, options)[0][0]


def test_sql_and_python_enqueue_use_the_same_unique_keys(client, queue):
    first = ask(queue, '{"unique": ["n"]}')
    assert put(client, unique=("n",)) == ask(queue, '{"unique": "n"}', '{"n": 1}') == first
    deep = ask(queue, '{"unique": ["$.doc.id"]}')
    assert client.enqueue("a:b", {"doc": {"id": 3}}, unique=("$.doc.id",)) == deep
    whole = ask(queue, '{"unique": true}', '{"n": 1.0}')
    assert client.enqueue("a:b", {"n": 1.0}, unique=True) == whole
    keyed = ask(queue, '{"unique_key": "k", "unique_for": "1 hour"}')
    assert client.enqueue("a:b", {}, unique_key="k") == keyed
    queue.cancel(keyed)
    assert ask(queue, '{"unique_key": "k"}') == keyed
    assert ask(queue, '{"unique": false}') != ask(queue, '{"unique": false}')
    assert len({first, deep, whole, keyed}) == 4


def test_sql_enqueue_debounces_and_throttles_jobs(client, queue):
    first = ask(queue, '{"unique": ["n"], "debounce": "30 s", "max_wait": 60}', '{"n": 1, "text": "a"}')
    assert times(queue, first)[0] == timedelta(seconds=30)
    assert ask(queue, '{"unique": ["n"], "debounce": 30}', '{"n": 1, "text": "b"}') == first
    assert client.job(first)["payload"]["text"] == "b"
    leading = ask(queue, '{"unique": ["n"], "throttle": "1 minute"}', '{"n": 2}')
    queue.cancel(leading)
    assert ask(queue, '{"unique": ["n"], "throttle": "1 minute"}', '{"n": 2}') == leading


def test_sql_enqueue_has_the_uniqueness_rules_of_python(client, queue):
    waiting = ask(queue, '{"unique": {"by": ["n"], "during": "waiting"}}')
    queue.run("UPDATE jobherd.ready SET attempts = 1")
    assert ask(queue, '{"unique": {"by": "n", "during": "waiting"}}') != waiting
    per_queue = [ask(queue, f'{{"unique": {{"queue": true}}, "queue": "{name}"}}') for name in ("one", "two", "one")]
    assert (per_queue[0] == per_queue[2], per_queue[0] == per_queue[1]) == (True, False)
    never = ask(queue, '{"unique": {"during": "never"}, "unique_for": 60, "unique_key": "x"}')
    queue.cancel(never)
    assert ask(queue, '{"unique": {"during": "never"}, "unique_for": 60, "unique_key": "x"}') == never
    with pytest.raises(psycopg.errors.UniqueViolation, match=f"job {per_queue[0]} holds the same key"):
        ask(queue, '{"unique": {"queue": true, "conflict": "raise"}, "queue": "one"}')
    new = ask(queue, '{"unique": {"conflict": "raise"}}', '{"n": 99}')
    replace = '{"unique": {"by": ["n"], "conflict": "replace"}, "priority": -5}'
    assert ask(queue, replace, '{"n": 7, "text": "a"}') == ask(queue, replace, '{"n": 7, "text": "b"}') > new
    collect = '{"unique": {"by": ["n"], "conflict": "collect", "collect": "items"}}'
    job = ask(queue, collect, '{"n": 8, "items": [1]}')
    assert ask(queue, collect, '{"n": 8, "items": [2]}') == job
    assert client.job(job)["payload"]["items"] == [1, 2]
    trailing = '{"unique": ["n"], "throttle": "1 minute", "edge": "trailing"}'
    job = ask(queue, trailing, '{"n": 9, "text": "a"}')
    assert ask(queue, trailing, '{"n": 9, "text": "b"}') == job
    assert times(queue, job)[0] == timedelta(minutes=1)
    assert client.job(job)["payload"]["text"] == "b"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('{"unique": 7}', "must be true, false, fields"),
        ('{"unique": {"fields": ["n"]}}', "takes by, queue, during, conflict and collect"),
        ('{"unique": []}', "1 to 20 fields"),
        ('{"unique": {"during": "later"}}', "during must be"),
        ('{"unique": {"conflict": "fail"}}', "conflict must be"),
        ('{"unique": {"queue": "a"}}', "queue must be true or false"),
        ('{"unique": {"conflict": "collect"}}', "belong together"),
        ('{"unique": {"by": ["n"], "conflict": "collect", "collect": "n"}}', "not in by"),
        ('{"unique": {"conflict": "collect", "collect": "n"}}', "requires by or unique_key"),
        ('{"unique": {"during": "never"}}', "requires unique_for"),
        ('{"unique": {"during": "never", "conflict": "replace"}}', "excludes during never"),
        ('{"unique": {"conflict": "replace"}, "throttle": 5}', "requires edge trailing"),
        ('{"unique": {"conflict": "raise"}, "debounce": 5}', "exclude the conflict raise"),
        ('{"edge": "trailing"}', "edge requires throttle"),
        ('{"edge": "middle", "throttle": 5}', "edge must be"),
        ('{"edge": "trailing", "throttle": 5, "delay": 5}', "edge trailing excludes delay"),
        ('{"unique": ["a.b"]}', "must name fields of the payload"),
        ('{"unique_key": ""}', "1 to 1,000 characters"),
        ('{"throttle": "1 s", "debounce": "1 s"}', "throttle excludes debounce"),
        ('{"max_wait": "1 s"}', "max_wait requires debounce"),
        ('{"debounce": "1 s", "delay": 5}', "debounce excludes delay"),
        ('{"debounce": "-1 s"}', "must be from 0"),
        ('{"debounce": 0}', "more than 0 seconds"),
        ('{"debounce": "soon"}', "invalid input syntax"),
    ],
)
def test_sql_enqueue_rejects_an_invalid_uniqueness_option(queue, options, says):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=says):
        ask(queue, options)
