"""The commands for periodic jobs."""

from __future__ import annotations

import shlex

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
    assert send(dsn, "UPDATE jobherd.schedules SET next_at = now() RETURNING true") == [(True,)]
    listed = jobherd("schedules", dsn=dsn).out
    assert "0 3 * * * Europe" in listed
    assert "paused by" in listed
    assert " +0000" not in listed, "a paused schedule has no next time"
    name = "a-name-that-is-not-cut-since-each-command-needs-it"
    assert jobherd("schedule", "add", name, "--kind", "feed:poll", "--every", "1h", dsn=dsn).code == 0
    assert name in jobherd("schedules", dsn=dsn).out
    assert jobherd("schedule", "delete", name, dsn=dsn).code == 0
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


def test_invalid_schedule_is_rejected_before_it_is_stored(database):
    bad = jobherd("schedule", "add", "x", "--kind", "a:b", "--cron", "61 * * * *", dsn=database)
    assert (bad.code, "minute must be from 0 to 59" in bad.err) == (2, True)
    bad = jobherd("schedule", "add", "x", "--kind", "a:b", "--cron", "@daily", "--tz", "Mars", dsn=database)
    assert (bad.code, "not a known time zone" in bad.err) == (2, True)
    for payload, says in (("{", "--payload is not JSON"), ("[]", "--payload must be a dict"),
                          ('{"day": "{today}"}', "'{today}' is not a template")):  # fmt: skip
        bad = jobherd("schedule", "add", "x", "--kind", "a:b", "--every", "1h", "--payload", payload, dsn=database)
        assert (bad.code, says in bad.err) == (2, True)
    assert jobherd("schedule", "pause", "x", "--for", "soon", dsn=database).code == 2
    assert jobherd("schedule", "pause", "x", "--for", "1h", "--until", "tomorrow", dsn=database).code == 2
    missing = "jobherd: there is no schedule 'none'. `jobherd schedules` lists them"
    assert jobherd("schedule", "run", "none", dsn=database).err.splitlines()[-1] == missing
    assert "does not exist" in jobherd("schedule", "edit", "none", "--every", "1h", dsn=database).err


def test_schedule_next_of_an_expression_needs_no_database_and_marks_clock_changes():
    shown = jobherd("schedule", "next", "30 2 * * *", "--tz", "Europe/Berlin", "-n", "400", dsn="host=nowhere.invalid")
    assert shown.code == 0
    assert len(shown.lines) == 400
    assert sum("the clock has changed" in line for line in shown.lines) in {2, 3}


def test_schedule_next_shows_the_instants_of_a_stored_schedule(database):
    jobherd("schedule", "add", "x", "--kind", "a:b", "--every", "1h", "--starts-at", "2100-01-01T00:30Z", dsn=database)
    shown = jobherd("schedule", "next", "x", "-n", "2", dsn=database)
    assert shown.lines == ["Fri 2100-01-01 00:30:00 +0000", "Fri 2100-01-01 01:30:00 +0000"], shown.err


CELERY = """
from datetime import timedelta

class crontab:  # as in celery.schedules
    def __init__(self, minute="*", hour="*", day_of_week="*", day_of_month="*", month_of_year="*"):
        self._orig_minute, self._orig_hour, self._orig_day_of_week = minute, hour, day_of_week
        self._orig_day_of_month, self._orig_month_of_year = day_of_month, month_of_year

class solar: ...

class Settings:
    timezone = "Europe/London"
    beat_schedule = {
        "Report at night": {"task": "proj.Report", "schedule": crontab(0, {3, 4}, "monday, fri"), "kwargs": {"day": "it's"},
                            "options": {"queue": "slow", "expires": 300, "priority": 9}},
        "poll": {"task": "proj.poll", "schedule": timedelta(minutes=15), "args": ()},
        "often": {"task": "proj.poll", "schedule": 30.0},
        "positional": {"task": "proj.poll", "schedule": 30.0, "args": (1,)},
        "friday-13": {"task": "proj.poll", "schedule": crontab(0, 0, "fri", 13)},
        "sunrise": {"task": "proj.poll", "schedule": solar()},
        "fast": {"task": "proj.poll", "schedule": 0.1},
        "odd": {"task": "proj.poll", "schedule": 30.0, "kwargs": {"text": "{x}"}},
    }

class Celery:
    conf = Settings()

app = Celery()
"""


def test_schedule_import_prints_commands_that_add_the_schedules_of_celery_beat(database, tmp_path):
    (tmp_path / "proj.py").write_text(CELERY)
    shown = jobherd("schedule", "import", "--celery", "proj", cwd=tmp_path)
    assert shown.code == 1
    assert [line.removeprefix("jobherd schedule add ") for line in shown.lines] == [
        """report-at-night --kind proj.report --cron '0 3,4 * * mon,fri' --tz Europe/London --payload '{"day": "it'"'"'s"}' --queue slow --good-for 300s""",
        "poll --kind proj.poll --every 900s",
        "often --kind proj.poll --every 30s",
    ]
    for says in (
        "Report at night: priority of its options is not converted",
        "positional is left out: it has positional arguments",
        "friday-13 is left out: 0 0 13 * fri must match day and weekday in Celery",
        "sunrise is left out: a solar is not a period or a crontab",
        "fast is left out: schedule must be at least 1 s",
        "odd is left out: kwargs '{x}': '{x}' is not a template",
    ):
        assert says in shown.err
    for line in shown.lines:
        assert jobherd(*shlex.split(line)[1:], dsn=database).code == 0
    rows = {row["name"]: row for row in jobherd("schedules", "--json", dsn=database).json}
    report = rows["report-at-night"]
    assert (report["cron"], report["tz"], report["payload"]) == ("0 3,4 * * mon,fri", "Europe/London", {"day": "it's"})
    assert report["options"] == {"queue": "slow", "good_for": 300}
    assert {name: row["every"] for name, row in rows.items() if row["every"]} == {"poll": 900, "often": 30}


def test_schedule_import_and_add_report_what_is_missing(tmp_path):
    (tmp_path / "proj.py").write_text("app = None")
    (tmp_path / "broken.py").write_text("raise ValueError('no\\nbroker.')")
    for words, code, says in (
        (["import"], 2, "jobherd schedule import --celery proj.celery"),
        (["import", "--celery", "none"], 2, "cannot import none: ModuleNotFoundError"),
        (["import", "--celery", "broken"], 2, "cannot import broken: ValueError: no broker. Run this"),
        (["import", "--celery", "proj"], 1, "proj has no beat_schedule: name the module of the Celery application"),
        (["add"], 2, "NAME is missing"),
    ):
        shown = jobherd("schedule", *words, cwd=tmp_path)
        assert (shown.code, says in shown.err) == (code, True), shown.err
