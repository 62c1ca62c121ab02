"""Tests how due ticks are decided: a day's outage under each policy, jitter, templates, backfills."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobherd.workers.maintenance.ticks import decide, plan

NOW = datetime(2026, 5, 2, 12, 0, 0, 500_000, tzinfo=UTC)
DAY = timedelta(days=1)


def row(**given):
    return {
        "name": "feed", "revision": 7, "kind": "a:b", "cron": None, "every": None, "tz": "UTC", "payload": {}, "options": {},
        "next_at": None, "last_at": None, "plan_from": None, "gap_from": None, "gap_why": None, "asked": [], "backfill": None,
        "paused_at": None, "retired_at": None,
    } | given  # fmt: skip


def told(decision):
    """Return each tick of a decision: its kind, its time, and the number of ticks that it replaces."""
    return [(one["decided"], one["at"][:16], one["missed"]) for one in decision["instants"]]


OUTAGES = [
    ({"cron": "0 * * * *"}, "skip", [("missed", "2026-05-02T11:00", 23), ("ran", "2026-05-02T12:00", 0)]),
    ({"cron": "0 * * * *"}, "one", [("missed", "2026-05-02T11:00", 23), ("ran", "2026-05-02T12:00", 24)]),
    ({"cron": "30 * * * *"}, "skip", [("missed", "2026-05-02T11:30", 23)]),
    ({"cron": "30 * * * *"}, "one", [("missed", "2026-05-02T10:30", 22), ("ran", "2026-05-02T11:30", 23)]),
    ({"every": 3600.0}, "skip", [("missed", "2026-05-02T11:00", 23), ("ran", "2026-05-02T12:00", 0)]),
    ({"every": 3600.0}, "one", [("missed", "2026-05-02T11:00", 23), ("ran", "2026-05-02T12:00", 24)]),
]


@pytest.mark.parametrize(("timing", "misfire", "wanted"), OUTAGES)
def test_outage_of_a_day_with_misfire_skip_or_one(timing, misfire, wanted):
    first = (NOW - DAY).replace(minute=30 if timing.get("cron") == "30 * * * *" else 0, second=0, microsecond=0)
    decision = decide(row(next_at=first.isoformat(), options={"misfire": misfire}, **timing), NOW, None)
    assert told(decision) == wanted
    assert decision["instants"][0]["since"] == first.isoformat()
    assert datetime.fromisoformat(decision["next"]) > NOW


@pytest.mark.parametrize("timing", [{"cron": "0 * * * *"}, {"every": 3600.0}])
def test_misfire_all_runs_each_tick_of_an_outage_within_its_age_and_number_limits(timing):
    first = (NOW - 2 * DAY).replace(microsecond=0)
    everything = decide(row(next_at=first.isoformat(), options={"misfire": "all"}, **timing), NOW, None)
    assert told(everything)[0] == ("missed", "2026-05-01T12:00", 24), "older than misfire_within"
    assert [one[0] for one in told(everything)[1:]] == ["ran"] * 24
    few = decide(row(next_at=first.isoformat(), options={"misfire": "all", "misfire_most": 3}, **timing), NOW, None)
    assert told(few)[0] == ("missed", "2026-05-02T08:00", 44)
    assert [one[1][11:] for one in told(few)[1:]] == ["09:00", "10:00", "11:00", "12:00"]


def test_delay_of_30_seconds_is_not_a_misfire():
    first = NOW.replace(microsecond=0) - timedelta(seconds=30)
    decision = decide(row(next_at=first.isoformat(), every=10.0, options={"misfire": "skip"}), NOW, None)
    assert [one[0] for one in told(decision)] == ["ran"] * 4


def test_outage_of_a_month_with_a_tick_each_second_makes_only_61_entries():
    first = NOW.replace(microsecond=0) - 30 * DAY
    decision = decide(row(next_at=first.isoformat(), every=1.0), NOW, None)
    assert told(decision)[0][::2] == ("missed", 30 * 86400 - 60)
    assert len(told(decision)) == 61


def test_clock_that_was_set_back_repeats_no_tick():
    assert decide(row(next_at=NOW.isoformat(), every=1.0), NOW - timedelta(hours=1), None) is None


def test_last_tick_before_ends_at_has_no_next_tick():
    decision = decide(
        row(next_at="2026-05-02T12:00:00+00:00", every=60.0, options={"ends_at": "2026-05-02T12:00:30+00:00"}),
        NOW,
        None,
    )
    assert decision["next"] is None


def test_jitter_is_the_same_on_each_host_and_differs_between_ticks():
    given = row(next_at="2026-05-02T11:59:00+00:00", cron="* * * * *", options={"jitter": 30.0})
    delays = [
        datetime.fromisoformat(one["run_at"]) - datetime.fromisoformat(one["at"])
        for decision in (decide(given, NOW, None), decide(given, NOW, None))
        for one in decision["instants"]
        if one["decided"] == "ran"
    ]
    assert delays[: len(delays) // 2] == delays[len(delays) // 2 :]
    assert all(timedelta() <= one < timedelta(seconds=30) for one in delays)
    assert delays[0] != delays[1 % (len(delays) // 2)] or len(delays) == 2


def test_payload_templates_use_the_time_zone_of_the_schedule():
    payload = {
        "day": "{scheduled_for:%Y-%m-%d %H:%M}", "since": "{previous:%H:%M}", "of": ["{schedule}", {"n": "{missed}"}],
        "text": "{{x}} {missed} of {schedule}",
    }  # fmt: skip
    decision = decide(
        row(next_at="2026-05-02T12:00:00+00:00", last_at="2026-05-02T11:00:00+00:00", cron="0 * * * *", tz="Europe/Berlin", payload=payload),
        NOW, None,
    )  # fmt: skip
    assert decision["instants"][0]["payload"] == {
        "day": "2026-05-02 14:00", "since": "13:00", "of": ["feed", {"n": 0}], "text": "{x} 0 of feed",
    }  # fmt: skip


def test_good_for_sets_the_expiry_of_the_job():
    decision = decide(row(next_at="2026-05-02T12:00:00+00:00", every=60.0, options={"good_for": 30.0}), NOW, None)
    assert decision["instants"][0]["expires_at"] == "2026-05-02T12:00:30+00:00"


def test_paused_schedule_runs_only_what_a_user_requests():
    given = row(next_at="2026-05-02T12:00:00+00:00", every=60.0, paused_at=NOW.isoformat(), asked=[NOW.isoformat()])
    decision = decide(given, NOW, None)
    assert told(decision) == [("manual", "2026-05-02T12:00", 0)]
    assert decision["next"] == given["next_at"]
    assert decision["asked"] == given["asked"]


def test_backfill_keeps_to_its_number_of_parallel_jobs():
    given = row(
        next_at="2026-05-03T00:00:00+00:00", cron="0 0 * * *",
        backfill={"from": "2026-04-01T00:00:00+00:00", "to": "2026-04-05T00:00:00+00:00", "parallel": 3},
    )  # fmt: skip
    first = decide(given, NOW, 1)
    assert told(first) == [("backfilled", "2026-04-01T00:00", 0), ("backfilled", "2026-04-02T00:00", 0)]
    assert decide(given | {"backfill": first["backfill"]}, NOW, 3) is None
    rest = decide(given | {"backfill": first["backfill"] | {"parallel": 9}}, NOW, 0)
    assert [one[1][:10] for one in told(rest)] == ["2026-04-03", "2026-04-04", "2026-04-05"]
    assert rest["backfill"] is None
    assert rest["next"] == given["next_at"]


def test_plan_counts_the_ticks_that_were_skipped_during_a_pause():
    paused = row(
        cron="0 * * * *", plan_from="2026-05-02T12:30:00+00:00", gap_from="2026-05-02T09:00:00+00:00", gap_why="paused"
    )
    assert plan(paused) == {
        "name": "feed", "revision": 7, "next": "2026-05-02T13:00:00+00:00",
        "gap_at": "2026-05-02T12:00:00+00:00", "gap_missed": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cron": "* * * *"}, "has 4 fields"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, "not a known time zone"),
        ({"cron": "* * * * *", "options": {"starts_at": "soon"}}, "Invalid isoformat"),
    ],
)
def test_schedule_that_cannot_be_planned_gets_an_error_with_the_reason(given, says):
    answer = plan(row(plan_from=NOW.isoformat(), **given))
    assert says in answer["error"]
    assert "next" not in answer
