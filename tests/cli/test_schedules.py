"""The commands for periodic jobs."""

from __future__ import annotations

from tests.cli.rows import send
from tests.cli.shell import jobherd


def test_a_schedule_is_added_edited_paused_run_and_deleted(database):
    dsn = database
    assert "there are no schedules" in jobherd("schedules", dsn=dsn).err
    added = jobherd(
        "schedule", "add", "feed-eu", "--kind", "feed:poll", "--every", "15m", "--payload", '{"region": "eu"}',
        "--jitter", "30s", "--overlap", "skip", "--pause-after", "3", dsn=dsn,
    )  # fmt: skip
    assert (added.code, added.out) == (0, "schedule feed-eu is created\n")
    again = jobherd("schedule", "add", "feed-eu", "--kind", "feed:poll", "--every", "1h", dsn=dsn)
    assert (again.code, "exists already" in again.err) == (1, True)
    [row] = jobherd("schedules", "--json", dsn=dsn).json
    assert (row["every"], row["payload"], row["options"]) == (
        900,
        {"region": "eu"},
        {"jitter": 30, "overlap": "skip", "pause_after": 3},
    )
    assert jobherd("schedule", "edit", "feed-eu", "--cron", "0 3 * * *", "--tz", "Europe/Berlin", dsn=dsn).code == 0
    assert jobherd("schedule", "pause", "feed-eu", "--reason", "too many", dsn=dsn).code == 0
    listed = jobherd("schedules", dsn=dsn).out
    assert "0 3 * * * Europe" in listed
    assert "paused by" in listed
    assert jobherd("schedule", "pause", "feed-eu", "--for", "30m", dsn=dsn).code == 0
    assert send(dsn, "SELECT resume_at > now() + interval '20 min', pause_reason FROM jobherd.schedules") == [
        (True, None)
    ]
    assert jobherd("schedule", "resume", "feed-eu", dsn=dsn).code == 0
    assert jobherd("schedule", "run", "feed-eu", dsn=dsn).code == 0
    assert jobherd("schedule", "backfill", "feed-eu", "--from", "yesterday", "--to", "now", dsn=dsn).code == 0
    assert send(dsn, "SELECT cardinality(asked), backfill IS NOT NULL FROM jobherd.schedules") == [(1, True)]
    assert jobherd("schedule", "delete", "feed-eu", dsn=dsn).code == 0
    assert jobherd("schedule", "delete", "feed-eu", dsn=dsn).code == 1


def test_what_is_wrong_is_said_before_it_is_stored(database):
    bad = jobherd("schedule", "add", "x", "--kind", "a:b", "--cron", "61 * * * *", dsn=database)
    assert (bad.code, "minute must be from 0 to 59" in bad.err) == (2, True)
    bad = jobherd("schedule", "add", "x", "--kind", "a:b", "--cron", "@daily", "--tz", "Mars", dsn=database)
    assert (bad.code, "not a known time zone" in bad.err) == (2, True)
    assert jobherd("schedule", "pause", "x", "--for", "soon", dsn=database).code == 2
    assert jobherd("schedule", "pause", "x", "--for", "1h", "--until", "tomorrow", dsn=database).code == 2
    assert "there is no schedule 'none'" in jobherd("schedule", "run", "none", dsn=database).err
    assert "does not exist" in jobherd("schedule", "edit", "none", "--every", "1h", dsn=database).err


def test_next_needs_no_database_for_an_expression_and_says_where_the_clock_changes():
    shown = jobherd("schedule", "next", "30 2 * * *", "--tz", "Europe/Berlin", "-n", "400", dsn="host=nowhere.invalid")
    assert shown.code == 0
    assert len(shown.lines) == 400
    assert sum("the clock has changed" in line for line in shown.lines) in {2, 3}


def test_next_of_a_stored_schedule(database):
    jobherd("schedule", "add", "x", "--kind", "a:b", "--every", "1h", dsn=database)
    lines = jobherd("schedule", "next", "x", "-n", "2", dsn=database).lines
    assert [line.split()[2] for line in lines] == [line.split()[2][:2] + ":00:00" for line in lines]
