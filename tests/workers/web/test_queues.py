"""Tests that queue depths equal those of SQL, cost the same for any backlog, and hide no other metric if missing."""

from __future__ import annotations

import json
from collections import Counter

import psycopg
import pytest

from jobherd import sql
from jobherd.sql.migrate import migrate
from jobherd.workers.ipc.counters import Policy
from jobherd.workers.web import queue_counts, queue_depth
from jobherd.workers.web.queue_metrics import queue_metrics
from tests.support.network import Network
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster, quick_place
from tests.workers.web.support import Web

JOBS = "jobherd_queue_jobs"
CAPPED = "jobherd_queue_jobs_capped"
OLDEST = "jobherd_queue_oldest_seconds"
MEASURED = "jobherd_queues_measured_timestamp_seconds"


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def always(monkeypatch):
    """Let every scrape measure again, and wait for the result."""
    monkeypatch.setattr(queue_depth, "PERIOD", 0.0)
    monkeypatch.setattr(queue_depth, "EASE", 0.0)
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", 20.0)


def put(conn, table: str, queue: str, *, age: float = 0.0, priority: int = 0, number: int = 1) -> None:
    """Put back-dated jobs into a table; a negative age is due in the future."""
    conn.execute(
        f"INSERT INTO jobherd.{table} (kind, queue, priority, run_at)"
        " SELECT 'k', %s, %s, clock_timestamp() - make_interval(secs => %s) FROM generate_series(1, %s)",
        (queue, priority, age, number),
    )


def hold(conn, queue: str, *, jobs: int, age: float, token: int) -> None:
    """Put a claim into the table of running jobs."""
    conn.execute(
        "INSERT INTO jobherd.running (child, token, claimed_at, queue, jobs)"
        " SELECT 1, %(token)s, clock_timestamp() - make_interval(secs => %(age)s), %(queue)s, array_agg(r)"
        "   FROM (SELECT * FROM jobherd.ready LIMIT 0) AS none RIGHT JOIN generate_series(1, %(jobs)s) ON false"
        "   CROSS JOIN LATERAL (SELECT row(1, now(), now(), null, null, null, 0, 0, null, 0, false, %(queue)s, 'k', '{}', null, null)::jobherd.ready AS r) AS one",
        {"queue": queue, "jobs": jobs, "age": age, "token": token},
    )


def test_depth_and_age_equal_those_of_sql(database, conn, always):
    put(conn, "ready", "default", age=500, number=3)
    put(conn, "ready", "default", age=9000, priority=50)  # the least urgent waits longest
    put(conn, "ready", "media", number=7)
    put(conn, "scheduled", "default", age=-3600, number=2)
    put(conn, "scheduled", "mail", age=3000, number=4)  # no process promotes them
    hold(conn, "default", jobs=3, age=1000, token=1)
    hold(conn, "default", jobs=1, age=2000, token=2)
    with Web(database) as child:
        scrape = child.scrape()
        truth = conn.execute("SELECT queue, state, count(*) FROM jobherd.jobs GROUP BY queue, state").fetchall()
        assert {(queue, state): number for (queue, state), number in scrape.all(JOBS).items() if number} == {
            (queue, state): number for queue, state, number in truth
        }
        assert not any(scrape.all(CAPPED).values())
        oldest = {
            ("default", "ready"): 9000,
            ("media", "ready"): 0,
            ("default", "running"): 2000,
            ("default", "scheduled"): 0,
            ("mail", "scheduled"): 3000,
        }
        for (queue, state), seconds in oldest.items():
            assert scrape.of(OLDEST, queue=queue, state=state) == pytest.approx(seconds, abs=LIMIT), (queue, state)
        assert set(scrape.all(MEASURED)) == {("ready",), ("scheduled",), ("running",)}


def test_emptied_queue_is_shown_as_empty(database, conn, always):
    put(conn, "ready", "default", age=60, number=2)
    with Web(database) as child:
        assert child.scrape().of(JOBS, queue="default", state="ready") == 2
        conn.execute("DELETE FROM jobherd.ready")
        scrape = child.scrape()
        assert scrape.of(JOBS, queue="default", state="ready") == 0
        assert scrape.of(OLDEST, queue="default", state="ready") == 0


def test_queue_that_a_kind_declares_has_series_before_its_first_job(database, conn, always):
    conn.execute("INSERT INTO jobherd.kinds VALUES ('k', 'media', 0, 5, 3, 7, 30)")
    with Web(database) as child:
        scrape = child.scrape()
        assert scrape.all(JOBS, queue="media") == {("ready",): 0, ("scheduled",): 0, ("running",): 0}
        assert scrape.of("jobherd_queue_paused", queue="media") == 0


def test_paused_queue_is_shown_as_paused(database, conn, always):
    with Web(database) as child:
        conn.execute("SELECT jobherd.pause('media', 'testing')")
        assert child.scrape().of("jobherd_queue_paused", queue="media") == 1
        conn.execute("SELECT jobherd.resume('media')")
        assert child.scrape().of("jobherd_queue_paused", queue="media") == 0


def test_pauses_and_limits_are_shown_with_their_usage(database, conn, always):
    conn.execute(
        "SELECT jobherd.set_limit(kind => 'k', max_running => 3), jobherd.limit(kind => 'k', rate => '30/min', burst => 4), jobherd.pause('*')"
    )
    hold(conn, "default", jobs=2, age=20, token=1)
    with Web(database) as child:
        scrape = child.scrape()
    assert scrape.all("jobherd_paused") == {("*", "all"): 1, ("k", "kind"): 0}
    assert scrape.all("jobherd_concurrency_limit") == {("k", "kind"): 3}
    assert scrape.all("jobherd_rate_limit") == {("k", "kind"): 0.5}
    assert scrape.all("jobherd_rate_tokens") == {("k", "kind"): 4}
    assert scrape.all("jobherd_concurrency_running") == {("k", "kind"): 2}


def test_waiting_partitions_are_counted_only_for_queues_with_a_partition_rule(database, conn, always):
    conn.execute(
        "INSERT INTO jobherd.ready (kind, queue, lane) SELECT 'k', q, jobherd.lane_of((n % 3)::text)"
        " FROM generate_series(1, 9) AS n, unnest('{crm,fair,plain}'::text[]) AS q"
    )
    with Web(database) as child:
        assert child.scrape().all("jobherd_partitions_ready") == {}
        conn.execute("SELECT jobherd.limit_each_rate('crm', '1/h'), jobherd.fair('fair')")
        conn.execute(
            "INSERT INTO jobherd.buckets (scope, name, used_until, waiting_in, opens_at)"
            " VALUES ('lane', 'crm a', now(), 'crm', now() + interval '1 h'), ('lane', 'crm b', now(), 'crm', now())"
        )
        scrape = child.scrape()
    assert scrape.all("jobherd_partitions_ready") == {("crm",): 3, ("fair",): 3}
    assert scrape.all("jobherd_partitions_throttled") == {("crm",): 1, ("fair",): 0}


def test_count_stops_at_its_maximum_and_is_marked_as_capped(database, conn, always, monkeypatch):
    monkeypatch.setattr(queue_counts, "MOST", 1000)
    put(conn, "ready", "default", number=1500)
    put(conn, "scheduled", "default", age=-60, number=1500)
    with Web(database) as child:
        scrape = child.scrape()
    for state in ("ready", "scheduled"):
        assert scrape.of(JOBS, queue="default", state=state) == 1000
        assert scrape.of(CAPPED, queue="default", state=state) == 1
    assert scrape.of(CAPPED, queue="default", state="running") == 0


def test_number_of_queue_labels_is_bounded(database, conn, always):
    conn.execute(
        "INSERT INTO jobherd.ready (kind, queue) SELECT 'k', 'tenant-' || n FROM generate_series(1, 1000) AS n"
    )
    with Web(database) as child:
        assert len(child.scrape().all(JOBS, state="ready")) == queue_counts.QUEUES
        assert len(child.scrape().all(JOBS, state="ready")) == queue_counts.QUEUES


def test_series_stay_few_while_thousands_of_names_come_and_go(database, conn, always, monkeypatch):
    """10,000 queues, tenants, gates and error codes come and go.

    All scrapes together have few series, and no count is lost.
    """
    names = 2_000
    monkeypatch.setattr(queue_counts, "TENANTS", 2)
    seen: set[tuple[str, frozenset]] = set()
    put(conn, "ready", "zz-first", number=7)
    with Web(database, metrics_tenants=3) as child:
        child.scrape()
        number = child.boards[0].tally.declare([Policy("k")])["k"]
        for wave in range(5):
            conn.execute("DELETE FROM jobherd.ready WHERE queue <> 'zz-first'")
            conn.execute("DELETE FROM jobherd.gates")
            conn.execute("TRUNCATE jobherd.scheduled")
            conn.execute(
                """INSERT INTO jobherd.ready (kind, queue, extras)
                   SELECT 'made-up-' || n, 'w%(wave)s-' || n, CASE WHEN n %% 10 = 0 THEN jsonb_populate_record(NULL::jobherd.extras, jsonb_build_object('tenant', 'w%(wave)s-' || n %% 70)) END
                     FROM generate_series(1, %(names)s) AS n""".replace("%(wave)s", str(wave)),
                {"names": names},
            )
            conn.execute(
                "INSERT INTO jobherd.scheduled (kind, queue, run_at) SELECT 'k', queue, now() + interval '1 h' FROM jobherd.ready"
            )
            conn.execute(
                "INSERT INTO jobherd.gates (scope, name, paused_at, max_running, limited_at) SELECT 'queue', queue, now(), 2, now() FROM jobherd.ready"
                " WHERE queue <> 'zz-first' LIMIT 300"
            )
            for code in range(40):
                child.boards[0].tally.count_error(number, f"WAVE_{wave}_{code}")
            scrape = child.scrape()
            seen |= scrape.samples.keys()
            assert "made-up" not in scrape.text, "a kind without a handler has no label"
            assert scrape.of(JOBS, queue="zz-first", state="ready") == 7, "a queue that has a label keeps it"
            assert sum(scrape.all(JOBS, state="scheduled").values()) == names + 7, "the others are counted together"
            assert scrape.of(JOBS, queue="(other)", state="ready") > 0
            if wave:
                assert scrape.of(CAPPED, queue="(other)", state="ready") == 1, (
                    "there are more queues than the measurement reads"
                )
                assert scrape.of("jobherd_queue_paused", queue="(other)") == 1
                assert scrape.all("jobherd_concurrency_limit", scope="queue")["(other)",] > 2
    by_name = Counter(name for name, _ in seen)
    assert by_name["jobherd_tenant_jobs"] <= 3 * (3 * queue_counts.TENANTS + 1)
    assert by_name[JOBS] <= 3 * queue_counts.QUEUES
    assert max(by_name.values()) <= 3 * queue_counts.QUEUES
    assert len(seen) < 6_000


def test_measurement_is_reused_until_its_period_has_passed(database, conn, monkeypatch):
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", LIMIT)
    for rest in ("PERIOD", "REST_MOST"):
        monkeypatch.setattr(queue_depth, rest, 600.0)
    with Web(database) as child:
        first = child.scrape()
        assert first.of(MEASURED, state="ready") is not None
        put(conn, "ready", "default")
        second = child.scrape()
        assert second.of(MEASURED, state="ready") == first.of(MEASURED, state="ready")
        assert second.of(JOBS, queue="default", state="ready") is None


def rows_read(plan: dict) -> int:
    """Return how many rows the scans of tables in this plan read."""
    own = (
        (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
        if "Relation Name" in plan
        else 0
    )
    return own + sum(map(rows_read, plan.get("Plans", ())))


def scans(plan: dict) -> set[str]:
    return {plan["Node Type"]} | {node for below in plan.get("Plans", ()) for node in scans(below)}


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("state", ["ready", "scheduled"])
def test_large_backlog_is_not_read_completely(conn, state, analyzed):
    put(conn, state, "default", age=-60, number=30_000)
    put(conn, state, "media", age=-60, priority=3, number=10_000)
    if analyzed:
        conn.execute(f"VACUUM ANALYZE jobherd.{state}")
    with conn.transaction(), psycopg.ClientCursor(conn) as cursor:
        conn.execute(sql.load("session/limit_measurement"), {"milliseconds": 60_000})
        cursor.execute(
            "EXPLAIN (ANALYZE, FORMAT JSON) " + sql.load(f"observe/measure_{state}"),
            {"most": 2000, "queues": 200, "names": ["default"]},
        )
        (answer,) = cursor.fetchone()
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    assert "Seq Scan" not in scans(plan)
    assert "Sort" not in scans(plan) or state == "scheduled", plan
    assert rows_read(plan) < 2 * 2000 + 1000


def test_locked_table_does_not_hide_the_other_states(database, conn, always, monkeypatch):
    monkeypatch.setattr(queue_counts, "STATEMENT", 2.0)
    put(conn, "scheduled", "default", age=-60)
    with Web(database) as child:
        with conn.transaction():
            conn.execute("LOCK TABLE jobherd.ready IN ACCESS EXCLUSIVE MODE")
            scrape = child.scrape()
            child.scrape()
            assert scrape.of(JOBS, queue="default", state="ready") is None
            assert scrape.of(JOBS, queue="default", state="scheduled") == 1
        assert child.scrape().of(JOBS, queue="default", state="ready") == 0
        assert len([line for line in child.log.lines if "took longer than" in line]) == 1


def test_status_boards_are_shown_without_a_database(monkeypatch):
    with Web() as child:
        child.boards[0].count_started(1)
        scrape = child.scrape()
        child.scrape()
        assert scrape.of("jobherd_worker_jobs_started_total") == 1
        assert scrape.all(JOBS) == scrape.all(MEASURED) == {}
        assert len([line for line in child.log.lines if "cannot be measured" in line]) == 1


def test_database_that_comes_back_is_measured_again_at_the_next_wake(monkeypatch):
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", 20.0)
    with Cluster(place=quick_place()) as own, own.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
            put(connection, "ready", "default", number=2)
        monkeypatch.setattr(queue_depth, "PERIOD", 0.0)
        monkeypatch.setattr(queue_depth, "EASE", 0.0)
        with Web(dsn) as child:
            assert child.scrape().of(JOBS, queue="default", state="ready") == 2
            own.stop()
            monkeypatch.setattr(queue_depth, "PERIOD", 3600.0)
            monkeypatch.setattr(queue_depth, "REST_MOST", 3600.0)
            away = child.scrape()
            child.log.wait_for("metrics: the depth of the queues cannot be measured")
            assert away.of(JOBS, queue="default", state="ready") == 2, (
                "the last measurement is shown, together with its time"
            )
            own.start()
            with psycopg.connect(dsn, autocommit=True) as connection:
                put(connection, "ready", "default")
            child.nudge()
            child.ask("/")  # once this is answered, the web process has handled the wake
            assert child.scrape().of(JOBS, queue="default", state="ready") == 3
            child.log.wait_for("metrics: the database is back")


def test_stale_measurement_is_hidden_but_its_time_stays(database):
    import asyncio

    async def measured():
        now = [100.0]
        measurer = queue_depth.Measurer(database, clock=lambda: now[0])
        try:
            await measurer.refresh(20)
            assert set(measurer.latest()) == set(queue_counts.STATES)
            now[0] += queue_depth.STALE
            assert measurer.latest() == {}
            assert measurer.paused() == {}
            told = {family.name: len(family.samples) for family in queue_metrics(measurer, (), has_workers=True)}
            assert (told[JOBS], told[MEASURED]) == (0, len(queue_counts.STATES)), (
                "otherwise the alert on its age would end as soon as it starts"
            )
        finally:
            await measurer.close()

    asyncio.run(measured())


def test_session_whose_connection_stalls_is_replaced(database, monkeypatch):
    import asyncio

    async def measured():
        now = [100.0]
        with Network(database) as network:
            measurer = queue_depth.Measurer(network.dsn, clock=lambda: now[0])
            try:
                await measurer.refresh(LIMIT)
                assert measurer.latest()
                assert network.stall() == 1
                for well in (False, True):
                    monkeypatch.setattr(queue_depth, "LOST", LIMIT if well else 0.5)
                    now[0] += queue_depth.STALE
                    await measurer.refresh(LIMIT)
                    assert bool(measurer.latest()) is well
            finally:
                await measurer.close()

    asyncio.run(measured())


def test_measurement_works_with_any_date_style_of_the_database(database, conn, always):
    """The statement returns the time of a pause, and psycopg reads only ISO timestamps."""
    conn.execute(
        "ALTER DATABASE " + psycopg.conninfo.conninfo_to_dict(database)["dbname"] + " SET DateStyle = 'German'"
    )
    put(conn, "ready", "default")
    conn.execute("SELECT jobherd.pause('default')")
    with Web(database) as child:
        scrape = child.scrape()
        assert scrape.of(JOBS, queue="default", state="ready") == 1
        assert scrape.of("jobherd_queue_paused", queue="default") == 1


def test_measurements_use_one_named_session_without_an_open_transaction(database, conn, always):
    with Web(database) as child:
        child.scrape()
        found = conn.execute(
            "SELECT state, xact_start FROM pg_stat_activity WHERE application_name = 'jobherd web'"
        ).fetchall()
        assert found == [("idle", None)], "one session, no transaction left open"
        assert child.boards[-1].database


def test_jobs_in_another_schema_are_measured(empty_database, always):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        migrate(connection, schema="jobs_eu")
        connection.execute("INSERT INTO jobs_eu.ready (kind) VALUES ('k')")
    with Web(empty_database, schema="jobs_eu") as child:
        assert child.scrape().of(JOBS, queue="default", state="ready") == 1


@pytest.mark.promise("D40")
def test_largest_tenants_are_counted_by_name_and_the_others_together_if_enabled(database, conn):
    for tenant, number in (("acme", 3), ("globex", 2), ("initech", 1)):
        for place in range(number):
            options = f'{{"tenant": "{tenant}", "delay": {place}}}'
            conn.execute("SELECT jobherd.enqueue('k', '{}', %s::jsonb)", (options,))
    put(conn, "ready", "default", number=5)

    async def measured(tenants: int):
        measurer = queue_depth.Measurer(database, tenants=tenants)
        try:
            await measurer.refresh(20)
            return measurer.tenants()
        finally:
            await measurer.close()

    import asyncio

    assert asyncio.run(measured(0)) == {}
    assert asyncio.run(measured(2)) == {
        ("acme", "ready"): 1, ("acme", "scheduled"): 2, ("globex", "ready"): 1, ("globex", "scheduled"): 1, ("(other)", "ready"): 1,
    }  # fmt: skip


def test_slow_count_of_tenants_does_not_affect_other_measurements(database, conn, monkeypatch):
    import asyncio

    monkeypatch.setattr(queue_depth, "PERIOD", 0.0)
    monkeypatch.setattr(queue_depth, "EASE", 0.0)
    monkeypatch.setattr(queue_counts, "STATEMENT", 2.0)
    conn.execute("SELECT jobherd.enqueue('k', '{}', '{\"tenant\": \"acme\"}')")

    async def measured():
        measurer = queue_depth.Measurer(database, tenants=2)
        try:
            await measurer.refresh(LIMIT)
            (session,) = conn.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'jobherd web'"
            ).fetchall()
            # The other statements run first, so a lock would delay all of them. Only the count of
            # tenants becomes a statement that sleeps.
            monkeypatch.setitem(
                vars(sql),
                "load",
                lambda name, *schema: (
                    "SELECT pg_sleep(60)" if name == "observe/measure_tenants" else load(name, *schema)
                ),
            )
            before = measurer.measured_at()
            await measurer.refresh(LIMIT)
            assert all(measurer.measured_at()[state] > before[state] for state in queue_counts.STATES)
            assert measurer.tenants() == {("acme", "ready"): 1}, "the last count is kept"
            assert conn.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'jobherd web'"
            ).fetchall() == [session]
        finally:
            await measurer.close()

    load = sql.load
    asyncio.run(measured())


def test_scrape_shows_tenants(database, conn, monkeypatch):
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", LIMIT)
    conn.execute("SELECT jobherd.enqueue('k', '{}', '{\"tenant\": \"acme\"}')")
    with Web(database, metrics_tenants=1) as child:
        assert child.scrape().of("jobherd_tenant_jobs", tenant="acme", state="ready") == 1
