"""The primary is lost and its standby promoted: the same processes go on with the new one, and nothing that was acknowledged is lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sql.migrate import migrate
from tests.support.fleet import Stage
from tests.support.postgres import Cluster, quick_place
from tests.support.standby import NAME, Standby

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gate import Gate

LIMIT = 60.0


def test_after_a_failover_the_same_processes_go_on_with_the_promoted_standby(tmp_path: Path, gate: Gate):
    """The standby stands first in the DSN, which does not say that it may not be taken."""
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
                    processes = fleet.workers() | {-1: fleet.keeper()}
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
                    assert fleet.workers() | {-1: fleet.keeper()} == processes

                    # It is made read-only, as for a planned switch, and then is not.
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
                    assert fleet.workers() | {-1: fleet.keeper()} == processes
                    assert fleet.stop() == 0
                finally:
                    stage.show()
