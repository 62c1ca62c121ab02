"""The primary is lost and its standby promoted: the same processes continue with the new primary, and
no acknowledged job is lost. In the second test, the standby is lost that the primary's commits wait
for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from jobherd.sql.migrate import migrate
from tests.support.fleet import Stage
from tests.support.postgres import Cluster, quick_place
from tests.support.standby import NAME, Standby

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gate import Gate

LIMIT = 60.0


def test_processes_continue_with_the_promoted_standby_after_a_failover(tmp_path: Path, gate: Gate):
    """The standby is first in the DSN, and the DSN does not exclude it."""
    with Cluster(place=quick_place()) as primary, primary.database() as first:
        with psycopg.connect(first, autocommit=True) as connection:
            migrate(connection)
        with Standby(primary, place=quick_place()) as standby:
            with psycopg.connect(primary.dsn(), autocommit=True) as owner:
                owner.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
                owner.execute("SELECT pg_reload_conf()")
            both = make_conninfo(first, host=f"{standby.data},{primary.data}", port=f"{standby.port},{primary.port}")
            with Stage(make_conninfo(both, target_session_attrs="read-write"), tmp_path) as stage:
                try:
                    fleet = stage.run_fleet(workers=2, dsn=both, db_retry_initial="0.1s")
                    processes = fleet.workers() | {-1: fleet.maintenance()}
                    running = stage.enqueue("t:gate", '{"label": "meanwhile"}')
                    arrival = gate.wait_arrival("meanwhile")
                    acknowledged = [stage.enqueue("t:noop") for _ in range(5)]
                    primary.kill()
                    standby.promote()
                    arrival.open("through the new one")
                    stage.reconnect()
                    row = stage.wait_state(running, "completed", limit=LIMIT)
                    assert (row["result"], row["attempts"]) == ("through the new one", 1)
                    stage.wait_all([*acknowledged, stage.enqueue("t:noop")], "completed", limit=LIMIT)
                    assert stage.completed_twice() == []
                    assert fleet.workers() | {-1: fleet.maintenance()} == processes

                    # The database becomes read-only, as for a planned switchover, and then writable again.
                    name = conninfo_to_dict(both)["dbname"]
                    with psycopg.connect(standby.dsn(str(name)), autocommit=True) as owner:
                        gated = stage.enqueue("t:gate", '{"label": "read-only"}')
                        arrival = gate.wait_arrival("read-only")
                        owner.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                        owner.execute("SELECT pg_reload_conf()")
                        arrival.open("later")
                        fleet.wait_log("the database is away", after=len(fleet.log), limit=LIMIT)
                        owner.execute("SET default_transaction_read_only = off")
                        owner.execute("ALTER SYSTEM RESET default_transaction_read_only")
                        owner.execute("SELECT pg_reload_conf()")
                    until = time.monotonic() + LIMIT
                    while stage.call("SHOW transaction_read_only") == "on":
                        assert time.monotonic() < until
                    row = stage.wait_state(gated, "completed", limit=LIMIT)
                    assert (row["result"], row["attempts"]) == ("later", 1)
                    assert fleet.workers() | {-1: fleet.maintenance()} == processes
                    assert fleet.stop() == 0
                finally:
                    stage.show()


SESSIONS = "SELECT application_name, count(*) FROM pg_stat_activity WHERE application_name LIKE 'jobherd:%' GROUP BY 1"


def test_commits_that_wait_for_an_absent_standby_cost_no_job_and_sessions_stay_few(tmp_path: Path, gate: Gate):
    """Each process reconnects repeatedly for an answer, and each new session waits in the server for the last one."""
    with Cluster(place=quick_place()) as primary, primary.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        with Stage(dsn, tmp_path) as stage, psycopg.connect(primary.dsn(), autocommit=True) as owner:
            try:
                fleets = [
                    stage.run_fleet(workers=1, lease="6s", patience=1, db_retry_initial="0.1s", db_retry_max="0.5s")
                    for _ in range(2)
                ]
                supervisors = stage.run("SELECT id FROM jobherd.supervisors ORDER BY id")
                jobs = [stage.enqueue("t:gate", f'{{"label": "{number}"}}') for number in range(2)]
                arrivals = [gate.wait_arrival(str(number)) for number in range(2)]
                owner.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
                owner.execute("SELECT pg_reload_conf()")
                probe = psycopg.connect(dsn, autocommit=True)

                def held() -> bool:
                    """Return whether a commit waits for the standby.

                    The server reloads its configuration some time after the request: an earlier commit does not wait.
                    """
                    waits = owner.execute(
                        "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = %s", (probe.info.backend_pid,)
                    )
                    if waits.fetchone() == (True,):
                        return True
                    probe.pgconn.consume_input()
                    if not probe.pgconn.is_busy():
                        while probe.pgconn.get_result():
                            continue
                        probe.pgconn.send_query(b"COMMENT ON SCHEMA public IS 'probe'")
                    return False

                stage.wait(held, "a commit that waits for the standby", limit=LIMIT)
                probe.close()
                for arrival in arrivals:
                    arrival.open("written")
                backends: dict[str, set[int]] = {}

                def fourth() -> bool:
                    """Return whether each worker has opened four sessions.

                    While its last one waits in the server, a worker opens the next.
                    """
                    for name, pid in stage.run(
                        "SELECT application_name, pid FROM pg_stat_activity WHERE application_name LIKE 'jobherd:worker:%'"
                    ):
                        backends.setdefault(name, set()).add(pid)
                    return all(len(seen) >= 4 for seen in backends.values())

                stage.wait(fourth, "the fourth session of each worker", limit=LIMIT)
                for fleet in fleets:
                    fleet.wait_log(
                        "the database rejected a statement of the supervisor: lease/renew_lease", limit=LIMIT
                    )
                expired = "SELECT bool_and(lease_until < clock_timestamp()) FROM jobherd.supervisors"
                stage.wait(lambda: stage.call(expired), "the end of both leases", limit=LIMIT)
                # One session that commits and cannot be ended, and one that waits for it; a session
                # that was just abandoned may still be counted.
                stage.wait(
                    lambda: max(count for _, count in stage.run(SESSIONS)) <= 2,
                    lambda: f"fewer sessions: {stage.run(SESSIONS)}",
                    limit=LIMIT,
                )
                owner.execute("ALTER SYSTEM RESET synchronous_standby_names")
                owner.execute("SELECT pg_reload_conf()")
                for job in jobs:
                    row = stage.wait_state(job, "completed", limit=LIMIT)
                    assert (row["result"], row["attempts"], stage.runs(job)) == ("written", 1, 1)
                assert stage.completed_twice() == []
                stage.wait_state(stage.enqueue("t:noop"), "completed", limit=LIMIT)
                assert stage.run("SELECT id FROM jobherd.supervisors ORDER BY id") == supervisors, (
                    "no supervisor was reclaimed"
                )
                for fleet in fleets:
                    assert len(fleet.said("the database is away")) <= 8, fleet.text()
                    assert fleet.stop() == 0
            finally:
                stage.show()
