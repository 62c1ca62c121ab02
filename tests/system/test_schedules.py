"""Schedules under real supervisors: two releases at once, a laptop that sleeps, and an outage of a day.

Each tick has a row and at most one job, and the misfire policy decides which missed ticks still run.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psycopg

from jobherd.sql.migrate import migrate
from tests.support.faketime import Clock
from tests.support.fleet import Stage
from tests.support.postgres import Cluster, quick_place

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 60.0
HOUR, DAY = 3600.0, 86400.0
RELEASE = """
from jobherd import Job, Schedule, handler

@handler("r:tick", schedules=[{schedules}])
def tick(job: Job) -> list[object]:
    return [job.schedule, job.missed]
"""
STEPS = """
SELECT DISTINCT extract(epoch FROM step)::integer FROM (
    SELECT at - lag(at) OVER (ORDER BY at) AS step FROM jobherd.ticks WHERE schedule = %s) AS steps WHERE step IS NOT NULL
"""
STRAYS = """
SELECT (SELECT count(*) FROM jobherd.ticks WHERE job IS NULL AND decided NOT IN ('edited', 'missed')),
       (SELECT count(*) - count(DISTINCT job) FROM jobherd.ticks WHERE job IS NOT NULL),
       (SELECT count(*) FROM jobherd.jobs j FULL JOIN jobherd.ticks t ON t.job = j.id
         WHERE j.id IS NULL AND t.job IS NOT NULL OR t.job IS NULL AND j.id IS NOT NULL)
"""
"""Counts ticks without a job and without a reason; jobs of two ticks; jobs without a tick, or the reverse."""


def release(folder: Path, **schedules: str) -> Path:
    """Write a release whose handler declares these schedules, each with its options; return its folder."""
    folder.mkdir()
    declared = ", ".join(f"Schedule({name!r}, {options})" for name, options in schedules.items())
    (folder / "handlers.py").write_text(RELEASE.format(schedules=declared))
    return folder


def ticks(stage: Stage, name: str) -> int:
    return int(stage.call("SELECT count(*) FROM jobherd.ticks WHERE schedule = %s", name))


def wait_ticks(stage: Stage, *names: str) -> None:
    """Wait until three more ticks of each schedule were decided."""
    seen = {name: ticks(stage, name) for name in names}
    stage.wait(lambda: all(ticks(stage, name) >= seen[name] + 3 for name in names), f"instants of {names}", limit=LIMIT)


def wait_every(stage: Stage, seconds: float) -> None:
    """Wait until the schedule that both releases declare has this period."""
    stage.wait(
        lambda: stage.call("SELECT every FROM jobherd.schedules WHERE name = 'both'") == seconds,
        f"a period of {seconds} s",
        limit=LIMIT,
    )


def test_release_that_started_last_decides_a_shared_schedule_and_no_tick_is_lost(stage: Stage, tmp_path: Path):
    before = release(tmp_path / "before", both="every=1", old="every=1")
    after = release(tmp_path / "after", both="every=2", new="every=1")
    old = stage.run_fleet(workers=1, handlers=before)
    wait_ticks(stage, "both", "old")
    new = stage.run_fleet(workers=1, handlers=after)
    wait_every(stage, 2)
    os.kill(old.workers()[0], signal.SIGKILL)
    old.wait_ready(2)
    wait_ticks(stage, "both", "old", "new")
    wait_every(stage, 2)  # a restarted worker of the earlier release did not change it back
    back = stage.run_fleet(workers=1, handlers=before)
    wait_every(stage, 1)
    wait_ticks(stage, "both", "old", "new")
    stage.run("SELECT jobherd.pause_schedule(name) FROM jobherd.schedules")
    assert [fleet.stop() for fleet in (old, new, back)] == [0, 0, 0]
    assert stage.run(STRAYS) == [(0, 0, 0)]
    for name in ("old", "new"):
        assert stage.run(STEPS, name) == [(1,)], f"{name}: an instant is missing"
    assert {step for (step,) in stage.run(STEPS, "both")} <= {1, 2}


POLICIES = ("skip", "one", "all")
NAMES = [f"{timing}-{policy}" for timing in ("cron", "every") for policy in POLICIES]
LATE = """
SELECT count(*) FILTER (WHERE t.job IS NOT NULL), coalesce(sum(t.missed + 1) FILTER (WHERE t.job IS NULL), 0)::integer,
       max((j.result ->> 1)::integer), count(*) FILTER (WHERE t.job IS NOT NULL AND j.state = 'completed')
  FROM jobherd.ticks t LEFT JOIN jobherd.jobs j ON j.id = t.job
 WHERE t.schedule = %s AND t.noted_at - t.at > interval '60 s'
"""
"""Of the ticks decided late: those with a job, those without, the most missed per job, the completed jobs."""
GAPS = """
SELECT count(*) FROM (
    SELECT coalesce(since, at) - lag(at) OVER (ORDER BY at) AS step FROM jobherd.ticks WHERE schedule = %s) AS steps
 WHERE step <> interval '10 min'
"""


def land(clock: Clock, ahead: float) -> None:
    """Set the clock about this far ahead, to the middle between two ticks.

    Right after a tick, that tick would not be late yet, and would run under every policy.
    """
    clock.jump(ahead + 300 - time.time() % 600)


def make_up(stage: Stage, away: float, most: int) -> None:
    """Wait until the ticks of the time away are decided, and check them by policy.

    most: ticks that `misfire="all"` runs at most.
    """
    last = "SELECT min(last_at) > clock_timestamp() - interval '12 min' FROM jobherd.schedules"
    stage.wait(lambda: stage.call(last), "decisions about the missed ticks", limit=LIMIT)
    stage.wait(
        lambda: not stage.call("SELECT count(*) FROM jobherd.jobs WHERE state <> 'completed'"), "its jobs", limit=LIMIT
    )
    instants = int(away // 600)
    for name in NAMES:
        [(ran, left_out, stands_for, completed)] = stage.run(LATE, name)
        assert completed == ran, name
        assert ran + left_out in {instants - 1, instants, instants + 1}, (name, ran, left_out)
        if name.endswith("skip"):
            assert ran == 0, name
        elif name.endswith("one"):
            assert (ran, stands_for) == (1, left_out), name
        else:
            assert ran == min(most, ran + left_out), name
        assert stage.run(GAPS, name) == [(0,)], f"{name}: an instant has no row"


def test_misfire_policy_decides_the_ticks_missed_in_a_sleep_and_in_an_outage(tmp_path: Path):
    work = release(tmp_path / "release")
    with (
        Clock() as clock,
        Cluster(place=quick_place(), environment=clock.environment) as cluster,
        cluster.database() as dsn,
    ):
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        with Stage(dsn, tmp_path) as stage:
            try:
                fleet = stage.run_fleet(workers=1, handlers=work)
                for name in NAMES:
                    timing, policy = name.split("-")
                    given = {"cron": ("*/10 * * * *", None), "every": (None, "10 min")}[timing]
                    stage.run(
                        "SELECT jobherd.schedule(%s, 'r:tick', cron => %s, every => %s,"
                        " options => jsonb_build_object('misfire', %s::text))",
                        name, *given, policy,
                    )  # fmt: skip
                stage.wait(
                    lambda: (
                        stage.call("SELECT count(*) FROM jobherd.schedules WHERE next_at IS NOT NULL") == len(NAMES)
                    ),
                    "a next tick of each schedule",
                    limit=LIMIT,
                )
                land(clock, 3 * HOUR)  # a laptop that slept: its processes did not run meanwhile
                make_up(stage, 3 * HOUR, most=100)
                assert fleet.stop() == 0
                stage.run("DELETE FROM jobherd.ticks")
                land(clock, 3 * HOUR + DAY)
                stage.run_fleet(workers=1, handlers=work)
                make_up(stage, DAY, most=100)
            finally:
                stage.show()
