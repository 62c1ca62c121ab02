"""Tests the metrics of schedules: they equal the rows, have bounded series and count each tick once."""

from __future__ import annotations

import time

import psycopg
import pytest

from jobherd.workers.web import queue_depth, schedule_counts
from tests.workers.web.support import Web

SCHEDULES = "jobherd_schedules"
LATE = "jobherd_schedule_late_seconds"
DELAY = "jobherd_schedule_last_delay_seconds"
TICKS = "jobherd_schedule_ticks_total"
SUCCESS = "jobherd_schedule_last_success_timestamp_seconds"
PREVIOUS = "jobherd_schedule_previous_timestamp_seconds"
HOUR = 3600.0


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Let every scrape measure again, wait for the result, and count all ticks decided until then."""
    monkeypatch.setattr(queue_depth, "PERIOD", 0.0)
    monkeypatch.setattr(queue_depth, "EASE", 0.0)
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", 20.0)
    monkeypatch.setattr(schedule_counts, "LAG", 0.0)


def add(conn, *names, columns="", values=""):
    """Store planned schedules, due in an hour."""
    for name in names:
        conn.execute(
            f"INSERT INTO jobherd.schedules (name, kind, every, plan_from, next_at{columns})"
            f" VALUES (%s, 'k', 3600, NULL, now() + interval '1 h'{values})",
            (name,),
        )


def tick(conn, decided, name="feed", *, since=None, missed=0, late="0 s", job=None):
    """Store a tick that was decided now."""
    conn.execute(
        "INSERT INTO jobherd.ticks (schedule, at, since, decided, missed, job, noted_at)"
        " VALUES (%s, clock_timestamp() - %s::interval, clock_timestamp() - %s::interval, %s, %s, %s, clock_timestamp())",
        (name, late, since, decided, missed, job),
    )


def finish(conn, job, state, ago):
    """Store a finished job."""
    conn.execute(
        "INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, crashes, state,"
        " queue, kind, payload, error)"
        " VALUES (%s, now() - interval '9 h', now() - interval '9 h', now() - %s::interval, current_date + 7, 0, 1, 0, %s,"
        " 'default', 'k', '{}', 'no paper')",
        (job, ago, state),
    )


def ages(scrape, name):
    """Return how many hours ago each time was."""
    return {labels[0]: round((time.time() - value) / HOUR, 1) for labels, value in scrape.all(name).items()}


def test_without_a_schedule_there_is_no_series(database):
    with Web(database) as child:
        assert "jobherd_schedule" not in child.scrape().text


def test_schedules_are_counted_by_state(database, conn):
    add(conn, "feed", "other")
    add(conn, "held-up", columns=", paused_at, paused_by", values=", now(), 'anna'")
    add(conn, "fails", columns=", paused_at, paused_by", values=", now(), 'maintenance'")
    add(conn, "gone", columns=", retired_at", values=", now()")
    add(conn, "bad", columns=", error, paused_at", values=", 'no such zone', now()")
    with Web(database) as child:
        assert child.scrape().all(SCHEDULES) == {
            ("active",): 2, ("paused",): 1, ("failing",): 1, ("retired",): 1, ("error",): 1,
        }  # fmt: skip
        conn.execute("DELETE FROM jobherd.schedules")
        assert set(child.scrape().all(SCHEDULES).values()) == {0}, "a gauge does not vanish"


def test_schedule_that_no_process_ticks_is_late(database, conn):
    add(conn, "feed", "sound", "stopped")
    conn.execute("UPDATE jobherd.schedules SET next_at = now() - interval '90 s' WHERE name <> 'sound'")
    conn.execute("UPDATE jobherd.schedules SET paused_at = now() WHERE name = 'stopped'")
    tick(conn, "ran", late="40 s")
    tick(conn, "manual", "sound", late="40 s")
    with Web(database) as child:
        scrape = child.scrape()
        assert 90 <= scrape.of(LATE, schedule="feed") < 600
        assert (scrape.of(LATE, schedule="sound"), scrape.of(LATE, schedule="stopped")) == (0, 0)
        assert 39.9 < scrape.of(DELAY, schedule="feed") < 100, (
            "the row and the metric read the clock at different times"
        )
        assert scrape.of(DELAY, schedule="sound") == 0, "a manual run has no delay"


def test_each_tick_is_counted_once_from_the_start_of_the_process(database, conn):
    add(conn, "feed")
    tick(conn, "ran")
    with Web(database) as child:
        assert child.scrape().all(TICKS) == {("ran", "feed"): 0, ("missed", "feed"): 0}
        tick(conn, "ran", job=1)
        tick(conn, "missed", since="3 h", missed=2)
        tick(conn, "overlapped")
        for _ in range(2):
            scrape = child.scrape()
            assert scrape.all(TICKS) == {("ran", "feed"): 1, ("missed", "feed"): 3, ("overlapped", "feed"): 1}
        tick(conn, "ran", job=2)
        assert child.scrape().of(TICKS, schedule="feed", decided="ran") == 2


def test_many_ticks_are_counted_over_several_scrapes(database, conn, monkeypatch):
    monkeypatch.setattr(schedule_counts, "MOST", 3)
    add(conn, "feed")
    with Web(database) as child:
        child.scrape()
        for _ in range(10):
            tick(conn, "ran")
        counted = [child.scrape().of(TICKS, schedule="feed", decided="ran") for _ in range(4)]
    assert counted == [4, 8, 10, 10]


def test_schedules_beyond_the_label_limit_share_one_series(database, conn, monkeypatch):
    monkeypatch.setattr(schedule_counts, "SCHEDULES", 3)
    add(conn, *(f"s{number}" for number in range(5)))
    conn.execute("UPDATE jobherd.schedules SET next_at = now() - interval '90 s' WHERE name = 's4'")
    with Web(database) as child:
        scrape = child.scrape()
        assert scrape.all(SCHEDULES)["active",] == 5
        assert set(scrape.all(LATE)) == {("s0",), ("s1",), ("(other)",)}
        assert scrape.of(LATE, schedule="(other)") >= 90
        tick(conn, "missed", "s3")
        tick(conn, "ran", "s1")
        scrape = child.scrape()
        assert scrape.of(TICKS, schedule="(other)", decided="missed") == 1
        assert scrape.of(TICKS, schedule="s1", decided="ran") == 1


def test_last_success_is_the_finish_time_of_the_latest_completed_tick(database, conn):
    add(conn, "feed")
    for job, late in ((11, "4 h"), (12, "3 h"), (13, "2 h"), (14, "1 h")):
        tick(conn, "ran", late=late, job=job)
    finish(conn, 11, "completed", "2 h")  # later than the one after it
    finish(conn, 12, "completed", "2.5 h")
    finish(conn, 13, "failed", "1.9 h")
    conn.execute("INSERT INTO jobherd.ready (id, kind) VALUES (14, 'k')")
    with Web(database) as child:
        scrape = child.scrape()
        assert (ages(scrape, SUCCESS), ages(scrape, PREVIOUS)) == ({"feed": 2.5}, {"feed": 2})
        conn.execute("DELETE FROM jobherd.ready")
        finish(conn, 14, "completed", "30 min")
        assert ages(child.scrape(), SUCCESS) == {"feed": 0.5}


def test_job_that_the_history_does_not_keep_counts_as_completed_when_enqueued(database, conn):
    add(conn, "feed")
    tick(conn, "ran", late="2 h", job=11)
    with Web(database) as child:
        assert ages(child.scrape(), SUCCESS) == {"feed": 0}


def test_schedule_without_a_success_reports_0_from_its_second_tick_on(database, conn):
    add(conn, "feed", "new")
    tick(conn, "ran", late="2 h", job=11)
    finish(conn, 11, "failed", "2 h")
    with Web(database) as child:
        scrape = child.scrape()
        assert (scrape.all(SUCCESS), scrape.all(PREVIOUS)) == ({}, {})
        tick(conn, "missed", late="1 h")
        scrape = child.scrape()
        assert scrape.all(SUCCESS) == {("feed",): 0}
        assert ages(scrape, PREVIOUS) == {"feed": 2}


def test_only_ticks_that_ran_or_should_have_run_count_as_periods(database, conn):
    add(conn, "feed")
    add(conn, "held-up", columns=", paused_at, paused_by", values=", now(), 'anna'")
    for name, first in (("feed", 10), ("held-up", 20)):
        tick(conn, "ran", name, late="6 h", job=first)
        tick(conn, "held", name, late="5 h")
        finish(conn, first, "completed", "5.5 h")
    for late, decided, job in (("4 h", "overlapped", None), ("3 h", "merged", None), ("2 h", "paused", None),
                               ("1 h", "backfilled", 11)):  # fmt: skip
        tick(conn, decided, late=late, job=job)
    finish(conn, 11, "completed", "0 s")
    with Web(database) as child:
        scrape = child.scrape()
        assert ages(scrape, SUCCESS) == {"feed": 5.5, "held-up": 5.5}
        assert ages(scrape, PREVIOUS) == {"feed": 6}, "a paused schedule is not expected to run"


def test_schedules_without_their_own_label_have_no_last_success(database, conn, monkeypatch):
    monkeypatch.setattr(schedule_counts, "SCHEDULES", 2)
    names = [f"s{number}" for number in range(3)]
    add(conn, *names)
    for name in names:
        tick(conn, "ran", name, late="2 h", job=1)
        tick(conn, "ran", name, late="1 h", job=2)
    with Web(database) as child:
        scrape = child.scrape()
        assert set(scrape.all(SUCCESS)) == set(scrape.all(PREVIOUS)) == {("s0",)}
