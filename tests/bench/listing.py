"""Measure the dashboard's list over a long history, by filter, and what its index costs a drain.

generate_series makes the history: 20 common kinds, one failed job in a hundred, a kind of every
20,000th job, and kinds, states, tenants and error codes of a few jobs in all. Measured are all
statements of a list, as the dashboard sends them. Then drains run in turn: with the block summaries
that the list reads, and with the index on the ends of jobs that they have replaced.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import psycopg

from jobherd.workers.dashboard.database import Database
from jobherd.workers.dashboard.filters import Wanted
from jobherd.workers.dashboard.job_search import Found, search_jobs
from jobherd.workers.dashboard.job_search_by_end import search_jobs_by_end
from tests.bench.jobs import drain
from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.herd import Herd

WORK: Final = Path(__file__).with_name("work.py")
PATIENCE: Final = 60.0
"""Most seconds for a list here. The dashboard stops one after 2 s, which a busy machine can exceed."""
AT_ONCE: Final = 500_000
FILL: Final = """
    INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, crashes, state, queue, kind,
                                 payload, error_code, error, extras)
    SELECT n, t, t, t, t + interval '20 ms', (t::date + CASE WHEN state = 'completed' THEN 8 ELSE 31 END), n, 0, 1, 0, state,
           CASE WHEN n %% 3000000 = 7 THEN 'rare' ELSE 'q' || n %% 5 END,
           CASE WHEN n %% 3000000 = 5 THEN 'rare:kind' WHEN n %% 20000 = 3 THEN 'seldom:kind' ELSE 'common:kind' || n %% 20 END,
           json_build_object('n', n, 'user_id', 1234567, 'action', 'send_welcome_email', 'locale', 'en_GB', 'ref', 'ab12cd34ef56'),
           CASE WHEN state = 'failed' THEN CASE WHEN n %% 5000000 = 100 THEN 'RARE' ELSE 'BOOM' END END,
           CASE WHEN state <> 'completed' THEN 'ValueError: it broke' END,
           CASE WHEN n %% 3000000 = 9 THEN jsonb_populate_record(NULL::jobherd.extras, '{"tenant": "acme"}') END
      FROM generate_series(%(from)s::bigint, %(to)s::bigint) AS n,
           LATERAL (SELECT now() - make_interval(secs => (%(all)s - n) * 0.06) AS t,
                           CASE WHEN n %% 100 = 0 THEN 'failed' WHEN n %% 3000000 = 11 THEN 'expired' ELSE 'completed' END AS state) AS made
"""
DECLARE: Final = """
    INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed)
    SELECT kind, 'q0', 0, 5, 3, 7, 30
      FROM unnest(ARRAY['rare:kind', 'seldom:kind'] || ARRAY(SELECT 'common:kind' || n FROM generate_series(0, 19) AS n)) AS kind
"""
"""Declares the kinds, because text is searched only in jobs of declared kinds."""
ENDS: Final = "DROP INDEX jobherd.history_in_brief; CREATE INDEX history_by_end ON jobherd.history USING brin (finished_at) WITH (autosummarize = on)"
"""Restores the index that the summaries have replaced."""
ASKED: Final = {
    "everything": Wanted(),
    "failed": Wanted(states=("failed",)),
    "a rare kind": Wanted(kind="rare:kind"),
    "a seldom kind": Wanted(kind="seldom:kind"),
    "a kind that is not there": Wanted(kind="no:such"),
    "a rare queue": Wanted(queue="rare"),
    "a rare state": Wanted(states=("expired",)),
    "a state that is not there": Wanted(states=("cancelled",)),
    "a rare tenant": Wanted(tenant="acme"),
    "a rare error": Wanted(code="RARE"),
    "a rare kind that failed": Wanted(states=("failed",), kind="rare:kind"),
    "a day three days ago": Wanted(since="4d", until="3d"),
    "a seldom kind, three days ago": Wanted(kind="seldom:kind", since="4d", until="3d"),
    "a payload field of the newest": Wanted(field="action:send_welcome_email"),
    "a payload field of a seldom kind": Wanted(kind="seldom:kind", field="n:-1"),
    "everything by end": Wanted(sort="end"),
    "failed by end": Wanted(states=("failed",), sort="end"),
    "a rare kind by end": Wanted(kind="rare:kind", sort="end"),
    "a seldom kind by end": Wanted(kind="seldom:kind", sort="end"),
    "a kind that is not there, by end": Wanted(kind="no:such", sort="end"),
    "a day three days ago, by end": Wanted(since="4d", until="3d", sort="end"),
}
TEXT: Final = Wanted(text="no such word", since="90d")
FIELD: Final = Wanted(field="n:-1", since="90d")
STEPS: Final = {
    "states": None, "queue": None, "tenant": None, "code": None, "since": None, "until": None, "text": None, "field": None, "needle": None, "hidden": [], "limit": 50, "most": 20_000,
    "before": 2**62, "low": 0, "high": 2**40,
}  # fmt: skip


def main() -> int:
    given = arguments(__doc__, jobs=10_000_000, rounds=7, pairs=10, drained=50_000)
    report = Report(f"listing: {given.jobs:,} jobs of the past")
    with ground() as (cluster, dsn):
        report.on(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            fill(connection, given.jobs)
            (size,) = connection.execute(
                "SELECT pg_size_pretty(sum(pg_relation_size(i.indexrelid))) FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indexrelid"
                " WHERE h.inhparent = 'jobherd.history_in_brief'::regclass"
            ).fetchone()
            report.fact("the summaries", size)
            show_plan(connection)
        times, late, late_field = asyncio.run(looks(dsn, given.rounds))
        for name, took in times.items():
            report.figure(f"{name}", [1000 * one for one in took], unit="ms", aim=300)
        report.fact("a text that is nowhere", late)
        report.fact("a payload field that is nowhere", late_field)
        ours: list[float] = []
        before: list[float] = []
        for turn in range(given.pairs):
            for name in ("ours", "before") if turn % 2 else ("before", "ours"):
                with fresh(cluster) as own, psycopg.connect(own, autocommit=True) as connection:
                    if name == "before":
                        connection.execute(ENDS)
                    with Herd(own, WORK, "--claim-size", "100", workers=2):
                        (ours if name == "ours" else before).append(drain(connection, given.drained))
    if ours:
        report.figure(
            "drain with the summaries, against the ends alone", ours, before, unit="jobs/s", aim=0.98, at_least=True
        )
    return report.end()


def fill(connection: psycopg.Connection, jobs: int) -> None:
    """Make a history of `jobs` jobs."""
    connection.execute(DECLARE)
    for first in range(1, jobs + 1, AT_ONCE):
        last = min(first + AT_ONCE - 1, jobs)
        connection.execute(FILL, {"from": first, "to": last, "all": jobs})
    connection.execute("SELECT setval('jobherd.job_ids', %s)", [jobs])
    connection.execute("VACUUM ANALYZE jobherd.history")


def show_plan(connection: psycopg.Connection) -> None:
    """Print the plan that finds a rare kind in the whole history."""
    from jobherd import sql

    with connection.transaction():
        connection.execute(sql.load("dashboard/force_block_summaries"), {"milliseconds": 60_000})
        lines = connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) " + sql.load("dashboard/list_finished_ranges"),
            STEPS | {"kind": "rare:kind"},
        ).fetchall()
    print("\n".join(line for (line,) in lines if "never executed" not in line))


async def looks(dsn: str, rounds: int) -> tuple[dict[str, list[float]], str, str]:
    """The seconds of each list, and how far a search for a text and one for a payload field get."""
    database = Database(dsn)
    times: dict[str, list[float]] = {name: [] for name in ASKED}
    try:
        for _ in range(rounds + 1):
            for name, wanted in ASKED.items():
                begun = time.monotonic()
                found = await (search_jobs_by_end if wanted.sort else search_jobs)(database, wanted, budget=PATIENCE)
                times[name].append(time.monotonic() - begun)
                assert not found.is_late, name
        return {name: took[1:] for name, took in times.items()}, await late(database, TEXT), await late(database, FIELD)
    finally:
        await database.close()


async def late(database: Database, wanted: Wanted) -> str:
    """Text with the seconds of a list that finds nothing, and how far back it reads."""
    begun = time.monotonic()
    found: Found = await search_jobs(database, wanted)
    return f"{time.monotonic() - begun:.2f} s, looked back to job {found.floor:,}"


if __name__ == "__main__":
    sys.exit(main())
