"""Unique jobs: at most one live job for each key, a duplicate writes nothing, and the caller's transaction decides."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from jobherd import Client, DuplicateJob, Unique, aenqueue_on, enqueue_on, handler
from tests.support.patience import LIMIT
from tests.support.queue import Queue


@handler("order:sync", unique=("order_id",), queue="orders")
def sync(order_id: int, note: str = "") -> None: ...


WAITING = Unique(by=("n",), during="waiting")
RAISE = Unique(by=("n",), conflict="raise")


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def client(queue):
    return Client(connection=queue.connection)


def put(client, n=1, **options):
    return client.enqueue("a:b", {"n": n}, **{"unique": ("n",), **options})


def written(queue):
    return [queue.count(table) for table in ("ready", "scheduled", "keys")]


def test_second_job_with_the_same_key_is_not_enqueued(client, queue):
    first, second = put(client), put(client)
    assert (first.new, second, second.new) == (True, first, False)
    assert put(client, 2).new
    assert written(queue) == [2, 0, 2]


def test_duplicate_writes_nothing_and_locks_nothing(client, queue):
    put(client)
    with psycopg.connect(queue.dsn) as other:
        assert not enqueue_on(other, "a:b", {"n": 1}, unique=("n",)).new
        assert other.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
        queue.run("SET lock_timeout = '1ms'")
        queue.run("SELECT FROM jobherd.keys FOR UPDATE")


@pytest.mark.parametrize(
    ("outcome", "later"),
    [("ok", True), ("failed", True), ("retry", False), ("snoozed", False)],
)
def test_job_holds_its_key_until_it_has_finished(client, queue, outcome, later):
    first = put(client)
    child = queue.child()
    [job] = child.claim(1)
    assert put(client) == first
    child.settle(job.token, [first], outcome, delay=60.0, error="why", code="NO")
    assert put(client).new is later


@pytest.mark.parametrize("table", ["ready", "scheduled", "parked"])
def test_waiting_job_holds_its_key_in_each_table(client, queue, table):
    first = put(client, delay="1h" if table == "scheduled" else None)
    if table == "parked":
        queue.run("WITH job AS (DELETE FROM jobherd.ready RETURNING *) INSERT INTO jobherd.parked SELECT * FROM job")
    assert put(client) == first
    assert put(client, unique=WAITING) == first
    queue.run(f"UPDATE jobherd.{table} SET attempts = 1")
    assert put(client) == first
    assert put(client, unique=WAITING).new  # the job has started, and waits for its retry


def test_key_held_during_waiting_is_free_once_the_job_starts(client, queue):
    first = put(client, unique=WAITING)
    assert put(client, unique=WAITING) == first
    queue.child().claim(1)
    second = put(client, unique=WAITING)
    assert second.new
    assert put(client, unique=WAITING) == second


def test_canceled_job_holds_no_key(client, queue):
    first = put(client)
    queue.cancel(first)
    assert put(client).new


def test_unique_for_holds_the_key_even_after_the_job_has_finished(client, queue):
    never = Unique(by=("n",), during="never")
    first = put(client, unique=never, unique_for="1h")
    second = put(client, 2, unique_for="1h")
    for job in (first, second):
        queue.cancel(job)
    assert put(client, unique=never, unique_for="1h") == first
    assert put(client, 2) == second
    queue.run("UPDATE jobherd.keys SET until = clock_timestamp()")
    assert put(client, 2).new
    again = put(client, unique=never, unique_for="1h")
    assert again.new
    assert queue.run("SELECT extras FROM jobherd.ready WHERE id = %s", again) == [(None,)]


def test_key_depends_on_payload_kind_and_tenant_and_on_the_queue_if_requested(client):
    first = client.enqueue("a:b", {"n": 1, "x": 1}, unique=True)
    assert client.enqueue("a:b", {"x": 1, "n": 1}, unique=True) == first
    assert client.enqueue("a:b", {"x": 1.0, "n": 1}, unique=True).new
    assert client.enqueue("a:c", {"n": 1, "x": 1}, unique=True).new
    assert client.enqueue("a:b", {"n": 1, "x": 1}, unique=True, tenant="acme").new
    assert client.enqueue("a:b", {"n": 1, "x": 1}, unique=True, payload_bytes=b"x").new
    assert client.enqueue("a:b", {"n": 1, "x": 1}, unique=True, queue="other") == first
    assert client.enqueue("a:b", {"n": 1, "x": 1}, unique=Unique(queue=True), queue="other").new
    assert client.enqueue("a:b", {"n": 1, "x": 1}, unique=("n",)).new
    assert client.enqueue("a:b", {"payload": {"n": 1, "x": 1}}, unique=("payload",)).new
    key = client.enqueue("a:b", {"n": 1}, unique_key="1")
    assert key.new
    assert client.enqueue("a:b", {"n": 2}, unique_key="1") == key
    assert client.enqueue("a:b", {"key": "1"}, unique=("key",)).new


def test_missing_field_counts_as_null_and_a_path_reaches_nested_fields(client):
    by = Unique(by=("$.doc.id", "n"))
    first = client.enqueue("a:b", {"doc": {"id": 3, "text": "a"}}, unique=by)
    assert client.enqueue("a:b", {"doc": {"id": 3, "text": "b"}, "n": None}, unique=by) == first
    assert client.enqueue("a:b", {"doc": {"id": 4}}, unique=by).new


def test_handler_declares_the_key_of_its_jobs(queue):
    own = sync.options(connection=queue.connection)
    first = own.enqueue(7, note="a")
    assert (own.enqueue(order_id=7, note="b"), first.new) == (first, True)
    assert [int(one) for one in own.enqueue_many([(7,), (8,), (8,)])] == [first, first + 1, first + 1]
    assert own.options(unique=False).enqueue(7).new


def test_enqueue_many_returns_the_first_job_with_each_key(client, queue):
    there = put(client, 3)
    found = client.enqueue_many("a:b", ({"n": n % 5} for n in range(12)), unique=("n",))
    assert [job.new for job in found] == [True, True, True, False, True] + [False] * 7
    assert found[3] == there
    assert found[:5] == found[5:10]
    assert found[0] < found[1] < found[2] < found[4]  # in the order of the payloads
    assert queue.run("SELECT (payload ->> 'n')::int FROM jobherd.ready WHERE id = ANY (%s) ORDER BY id", list(map(int, found))) == [
        (3,), (0,), (1,), (2,), (4,)
    ]  # fmt: skip
    assert written(queue) == [5, 0, 5]


def test_enqueue_many_makes_the_same_keys_as_enqueue(client, queue):
    many = client.enqueue_many("a:b", ({"n": n} for n in range(3000)), unique=("n",), delay="1h", priority=-3)
    assert all(job.new for job in many)
    assert [put(client, n) for n in (0, 1, 2999)] == [many[0], many[1], many[2999]]
    assert queue.run("SELECT DISTINCT priority, (extras).unique_key IS NOT NULL FROM jobherd.scheduled") == [(-3, True)]


def test_enqueue_many_handles_new_held_and_finished_keys(client, queue):
    first = client.enqueue_many("a:b", ({"n": n} for n in range(6)), unique=("n",))
    for job in first[:3]:
        queue.cancel(job)
    found = client.enqueue_many("a:b", ({"n": n} for n in (7, 1, 4, 1, 6, 7)), unique=("n",))
    assert [job.new for job in found] == [True, True, False, False, True, False]
    assert found[2] == first[4]
    new = [found[0], found[1], found[4]]
    assert (found[3], found[5]) == (found[1], found[0])
    # in order, and without a second insert, which would use other ids
    assert list(map(int, new)) == [first[-1] + 1, first[-1] + 2, first[-1] + 4]
    assert queue.run("SELECT k.job FROM jobherd.keys k JOIN jobherd.ready r ON r.id = k.job AND (r.extras).unique_key = k.key"
                     " WHERE k.job > %s ORDER BY 1", int(first[-1])) == [(int(job),) for job in new]  # fmt: skip


def test_error_other_than_a_key_conflict_is_not_retried(client, queue):
    queue.run("CREATE SEQUENCE public.calls")
    queue.run(
        "CREATE FUNCTION public.fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('public.calls') = 1 THEN"
        " RAISE unique_violation USING CONSTRAINT = 'another'; END IF; RETURN NEW; END $$"
    )
    queue.run(
        "CREATE TRIGGER fail_once BEFORE INSERT ON jobherd.ready FOR EACH ROW EXECUTE FUNCTION public.fail_once()"
    )
    with pytest.raises(errors.UniqueViolation):
        client.enqueue_many("a:b", [{"n": 1}, {"n": 2}], unique=("n",))
    assert written(queue) == [0, 0, 0]


def test_conflict_raise_names_the_holder_and_enqueues_nothing(client, queue):
    first = put(client)
    with psycopg.connect(queue.dsn) as own:
        with pytest.raises(DuplicateJob, match=f"job {first} holds the same key") as raised:
            enqueue_on(own, "a:b", {"n": 1}, unique=RAISE)
        assert raised.value.id == first
        own.execute("SELECT 1")  # the caller's transaction is still usable
    with pytest.raises(DuplicateJob):
        client.enqueue_many("a:b", [{"n": 5}, {"n": 1}], unique=RAISE)
    with pytest.raises(DuplicateJob, match="two jobs of this call"):
        client.enqueue_many("a:b", [{"n": 5}, {"n": 5}], unique=RAISE)
    assert written(queue) == [1, 0, 1]
    assert all(job.new for job in client.enqueue_many("a:b", [{"n": 5}, {"n": 6}], unique=RAISE))


def test_async_enqueue_of_a_duplicate_returns_the_holder_or_raises(database):
    async def enqueue():
        async with await psycopg.AsyncConnection.connect(database) as own:
            first = await aenqueue_on(own, "a:b", {"n": 1}, unique=True)
            assert (await aenqueue_on(own, "a:b", {"n": 1}, unique=True), first.new) == (first, True)
            with pytest.raises(DuplicateJob):
                await aenqueue_on(own, "a:b", {"n": 1}, unique=Unique(conflict="raise"))

    asyncio.run(enqueue())


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("ours", [("n",), RAISE])
@pytest.mark.parametrize("finished", [False, True])
def test_second_caller_waits_for_the_transaction_of_the_first(client, queue, many, commits, ours, finished):
    found = []
    if finished:  # the key has a row, which both callers reuse
        queue.cancel(put(client))

    def second():
        try:
            if many:
                found.extend(client.enqueue_many("a:b", [{"n": 1}, {"n": 2}], unique=ours))
            else:
                found.append(put(client, unique=ours))
        except DuplicateJob as problem:
            found.append(problem)

    with psycopg.connect(queue.dsn) as first, psycopg.connect(queue.dsn, autocommit=True) as watch:
        held = enqueue_on(first, "a:b", {"n": 1}, unique=("n",))
        thread = threading.Thread(target=second)
        thread.start()
        await_blocked(watch, queue.connection.info.backend_pid)
        first.commit() if commits else first.rollback()
    thread.join(LIMIT)
    if not commits:
        assert all(job.new for job in found)
    elif ours is RAISE:
        assert [problem.id for problem in found] == [held]
        assert put(client, 2, unique=RAISE, unique_for="1h").new  # the rejected call holds no key
    else:
        assert [(job == held, job.new) for job in found] == [(True, False), (False, True)][: len(found)]
    assert queue.run("SELECT count(*) FROM jobherd.ready WHERE (payload ->> 'n')::int = 1") == [(1,)]


def await_blocked(watch, pid):
    for _ in range(int(LIMIT * 200)):
        if watch.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0, pg_sleep(0.005)", [pid]).fetchone()[0]:
            return
    pytest.fail("it waits for no other session")


def test_rolled_back_savepoint_frees_the_key(client, queue):
    with queue.connection.transaction():
        with queue.connection.transaction(force_rollback=True):
            assert put(client).new
        assert put(client).new
        assert not put(client).new


def test_repeatable_read_fails_to_serialize_if_the_holder_is_newer_than_its_snapshot(queue, client):
    with psycopg.connect(queue.dsn) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        own.execute("SELECT count(*) FROM jobherd.ready")
        put(client)
        with pytest.raises(errors.SerializationFailure):
            enqueue_on(own, "a:b", {"n": 1}, unique=("n",))
        own.rollback()
        assert not enqueue_on(own, "a:b", {"n": 1}, unique=("n",)).new


def test_retry_by_hand_takes_the_key_or_returns_conflict(client, queue):
    first = put(client)
    queue.cancel(first)
    second = put(client)
    assert second.new
    assert client.retry(first) == "conflict"
    assert queue.state(first) == "cancelled"
    queue.cancel(second)
    assert client.retry(first) == "ready"
    assert put(client) == first
    assert client.retry(second) == "conflict"


def test_retry_by_hand_takes_a_waiting_key_once_its_holder_runs(client, queue):
    first = put(client, unique=WAITING)
    queue.cancel(first)
    put(client, unique=WAITING)
    assert client.retry(first) == "conflict"
    queue.child().claim(1)
    assert client.retry(first) == "ready"


def test_costs_are_stored_for_new_jobs_only(client, queue):
    first = put(client, cost={"memory_mb": 5})
    assert put(client, cost={"memory_mb": 9}) == first
    assert queue.run("SELECT job, cost ->> 'memory_mb' FROM jobherd.demands") == [(first, "5.0")]


def test_key_shows_its_fields_unless_the_kind_redacts(client, queue):
    put(client)
    client.enqueue("a:b", {"n": 1}, unique_key="receipt:7")
    queue.run(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact)"
        " VALUES ('r:r', 'default', 0, 5, 3, 7, 30, '[\"$.n\"]')"
    )
    client.enqueue("r:r", {"n": 5}, unique=("n",))
    client.enqueue_many("r:r", [{"n": 6}, {"n": 7}], unique=("n",))
    assert queue.run("SELECT kind, shown FROM jobherd.keys ORDER BY job") == [
        ("a:b", '{"n": 1}'), ("a:b", "receipt:7"), ("r:r", None), ("r:r", None), ("r:r", None)
    ]  # fmt: skip


def test_encrypted_jobs_are_unique_and_their_keys_show_nothing(client, queue, monkeypatch):
    pytest.importorskip("cryptography")
    from jobherd.handlers._values import keys  # noqa: PLC0415

    keys.ring.cache_clear()
    monkeypatch.setenv("JOBHERD_KEYS", "a=" + "A" * 43)
    try:
        first = put(client, encrypt=True)
        assert put(client, encrypt=True) == first
        assert put(client, 2, encrypt=True).new
        named = client.enqueue("a:b", {"n": 1}, encrypt=True, unique_key="secret")
        assert client.enqueue("a:b", {"n": 2}, encrypt=True, unique_key="secret") == named
        keys.ring.cache_clear()
        monkeypatch.setenv("JOBHERD_KEYS", "b=" + "B" * 43 + ",a=" + "A" * 43)
        assert put(client, encrypt=True) == first
        assert queue.run("SELECT DISTINCT shown FROM jobherd.keys") == [(None,)]
    finally:
        keys.ring.cache_clear()


ROLES = ("jobherd_unique_acme", "jobherd_unique_globex", "jobherd_unique_none")


@contextmanager
def roles(queue):
    for role in ROLES:
        queue.run(f"CREATE ROLE {role}")
    try:
        queue.run(f"SELECT jobherd.grant_tenant('{ROLES[0]}', 'acme'), jobherd.grant_tenant('{ROLES[1]}', 'globex')")
        queue.run(f"GRANT USAGE ON SCHEMA jobherd TO {ROLES[2]}")
        yield
    finally:
        queue.run("RESET ROLE")
        queue.run(f"DROP OWNED BY {', '.join(ROLES)}")
        queue.run(f"DROP ROLE {', '.join(ROLES)}")


def test_tenant_cannot_reach_a_key_of_another_tenant(client, queue):
    with roles(queue):
        queue.run(f"SET ROLE {ROLES[0]}")
        first = put(client)
        assert (first.new, put(client)) == (True, first)
        for tenant in ("globex", None):
            with pytest.raises(errors.InsufficientPrivilege, match="must not enqueue jobs of tenant"):
                queue.run(
                    "SELECT jobherd.enqueue_unique(kind => 'a:b', payloads => '{\"{}\"}', rule => '{}', tenant => %s)",
                    tenant,
                )
        with pytest.raises(errors.InsufficientPrivilege, match="must not enqueue jobs of kind jobs:"):
            client.enqueue("jobs:webhook", {}, unique=True)
        for statement in ("SELECT FROM jobherd.keys", "SELECT jobherd.take_key('', 1, 'a:b')"):
            with pytest.raises(errors.InsufficientPrivilege):
                queue.run(statement)
        queue.run(f"SET ROLE {ROLES[1]}")
        assert put(client).new
        queue.run(f"SET ROLE {ROLES[2]}")
        with pytest.raises(errors.InsufficientPrivilege):
            queue.run("SELECT jobherd.enqueue_unique(kind => 'a:b', payloads => '{\"{}\"}', rule => '{}')")


def test_system_kinds_are_rejected_under_any_collation(queue):
    """In some collations `jobs;` sorts before `jobs:`. A function compares by the collation of its arguments."""
    try:
        queue.run("CREATE COLLATION public.english (provider = icu, locale = 'en-US')")
    except errors.FeatureNotSupported:
        pytest.skip("this PostgreSQL was built without ICU")
    queue.run("SET ROLE jobherd_enqueue")
    try:
        with pytest.raises(errors.InsufficientPrivilege, match="must not enqueue jobs of kind jobs:"):
            queue.run("SELECT jobherd.enqueue_unique('jobs:webhook' COLLATE public.english, '{\"{}\"}', '{}')")
    finally:
        queue.run("RESET ROLE")


def test_producer_role_can_enqueue_unique_jobs(client, queue):
    queue.run("SET ROLE jobherd_enqueue")
    try:
        first = put(client)
        assert (first.new, put(client)) == (True, first)
    finally:
        queue.run("RESET ROLE")


numbers = st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False, width=16) | st.just(10**20)
documents = st.recursive(
    st.none() | st.booleans() | numbers | st.text("a\"\\é{}[],'", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text('ab" ', min_size=1, max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


def same(one, other):
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(one=documents, other=documents)
def test_only_equal_payloads_have_the_same_key(client, queue, one, other):
    queue.run("TRUNCATE jobherd.keys, jobherd.ready")
    first = client.enqueue("a:b", {"x": one}, unique=("x",))
    assert client.enqueue("a:b", {"y": 1, "x": one}, unique=("x",)) == first
    second = client.enqueue("a:b", {"x": other}, unique=("x",))
    if same(one, other):
        assert second == first
    elif not (isinstance(one, float) or isinstance(other, float)):
        assert second.new


def sweep(queue, after=None, most=1000):
    return queue.connection.execute(queue.text("maintenance/sweep_keys"), {"after": after, "most": most}).fetchone()


def test_sweep_deletes_keys_of_finished_jobs_page_by_page(client, queue):
    jobs = client.enqueue_many("a:b", ({"n": n} for n in range(10)), unique=("n",))
    queue.child().claim(2)
    put(client, 10, delay="1h")
    put(client, 11, unique_for="1h")
    put(client, 12)
    queue.run(
        "WITH job AS (DELETE FROM jobherd.ready WHERE id = %s RETURNING *) INSERT INTO jobherd.parked SELECT * FROM job",
        jobs[9],
    )
    for job in jobs[4:9]:
        queue.cancel(job)
    after, deleted, pages = None, 0, 0
    while (page := sweep(queue, after, 3))[0] is not None:
        after, deleted, pages = page[0], deleted + page[1], pages + 1
    assert (deleted, pages) == (5, 5)
    left = [job for (job,) in queue.run("SELECT job FROM jobherd.keys ORDER BY job")]
    assert left == sorted({*jobs[:4], jobs[9], jobs[9] + 1, jobs[9] + 2, jobs[9] + 3})
    assert [put(client, n).new for n in (0, 3, 4, 9, 10)] == [False, False, True, False, False]


def test_sweep_skips_a_key_that_an_enqueue_is_about_to_take(client, queue):
    queue.cancel(put(client))
    with psycopg.connect(queue.dsn) as own:
        enqueue_on(own, "a:b", {"n": 1}, unique=("n",))
        queue.run("SET lock_timeout = '1ms'")
        assert sweep(queue)[1] == 0
    assert not put(client).new
