"""The data of charts: bars and lines stay in the frame, and labels match the values."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from starlette.datastructures import QueryParams

from jobherd.workers.dashboard.charts import HIGH, WIDE, WINDOWS, Series, bars, lines, nice, nice_seconds
from jobherd.workers.dashboard.filters import Wanted

HOUR = WINDOWS["hour"]
TWO = (Series("failed", "failed", "bad"), Series("expired", "expired", "warn"))
TIMES = (Series("p50", "half within", "accent"), Series("p95", "95 % within", "warn"))


def rows(**columns):
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    count = len(next(iter(columns.values())))
    return [
        {"at": at + timedelta(minutes=place), **{name: values[place] for name, values in columns.items()}}
        for place in range(count)
    ]


def test_failed_attempts_have_their_own_tone_and_no_link_to_jobs():
    three = (*TWO, Series("retried", "failed attempts", "soft", of_jobs=False))
    chart = bars("Failed", rows(failed=[1, 0], expired=[0, 0], retried=[7, 9]), three, HOUR)
    assert (
        chart.summary
        == "Failed: 1 jobs and 16 failed attempts that were followed by another in all, at most 9 per minute."
    )
    assert [bar.tone for bar in chart.bars] == ["bad", "soft", "soft"]
    assert chart.said[0] == "failed 1, expired 0, failed attempts 7"
    assert chart.leads == "10", "the second point has no finished job to link to"
    assert chart.query == "state=failed&state=expired"
    quiet = bars("Failed", rows(failed=[0], expired=[0], retried=[0]), three, HOUR)
    assert quiet.nothing == "No job failed or expired in this period, and no attempt failed."


def test_bars_are_stacked_and_stay_in_their_frame():
    chart = bars("Failed", rows(failed=[0, 3, 0, 40], expired=[0, 1, 2, 0]), TWO, HOUR)
    assert [bar.tone for bar in chart.bars] == ["bad", "warn", "warn", "bad"]
    lower, upper = chart.bars[:2]
    assert upper.y + upper.height == pytest.approx(lower.y)
    assert lower.y + lower.height == pytest.approx(HIGH)
    assert chart.marks == ("40", "20", "0")
    assert chart.bars[-1].height == HIGH
    assert chart.unit == "jobs per minute"
    assert chart.said[1] == "failed 3, expired 1"
    assert chart.summary == "Failed: 46 jobs in all, at most 40 per minute."
    assert not chart.empty
    assert [bar.is_partial for bar in chart.bars] == [False, False, False, True], "only the last minute is incomplete"
    assert [f"{at:%H:%M}" for at in chart.ticks] == ["03:00", "03:01", "03:02", "03:02", "03:03"]
    assert chart.leads == "0111"
    assert (chart.since, chart.point) == (datetime(2026, 1, 2, 3, tzinfo=UTC), 60)
    wanted, problems = Wanted.read(QueryParams(chart.query))
    assert (problems, wanted.states) == ({}, ("failed", "expired"))


def test_complete_and_partial_bars_of_a_tone_are_one_path_each():
    chart = bars("Failed", rows(failed=[4, 2, 1], expired=[0, 0, 1]), TWO, HOUR)
    assert [(tone, is_partial, path.count("M")) for tone, is_partial, path in chart.paths] == [
        ("bad", False, 2),
        ("bad", True, 1),
        ("warn", True, 1),
    ]
    assert chart.paths[0][2] == "M23.33 0h286.67v100h-286.67zM356.67 50h286.67v50h-286.67z"


def test_bar_of_one_job_among_thousands_is_visible():
    chart = bars("Completed", rows(failed=[1, 5000], expired=[0, 0]), TWO, HOUR)
    assert chart.bars[0].height >= 0.5


def test_lines_have_gaps_at_points_without_a_value():
    chart = lines("Duration", rows(p50=[0.1, None, 0.2, 0.3], p95=[None] * 4), TIMES, HOUR)
    assert len(chart.lines) == 2
    assert all(tone == "accent" for tone, _ in chart.lines)
    assert chart.marks == ("400 ms", "200 ms", "0")
    assert chart.said == ("half within 100 ms", "nothing ran", "half within 200 ms", "half within 300 ms")
    assert not chart.query


def test_chart_without_values_is_empty():
    for chart in (
        bars("Failed", rows(failed=[0, 0], expired=[0, 0]), TWO, HOUR),
        lines("Duration", rows(p50=[None], p95=[None]), TIMES, HOUR),
    ):
        assert chart.empty
        assert not chart.bars
        assert not chart.lines


def test_axis_covers_all_values_and_is_not_much_longer():
    dice = random.Random(3)
    for _ in range(2000):
        value = 10 ** dice.uniform(-5, 7)
        for top in (nice(value), nice_seconds(value)):
            assert value <= top * 1.000001
            assert top <= max(4.0, value * 2.6)
    many = [dice.randrange(10**6) for _ in range(60)]
    chart = bars("Failed", rows(failed=many, expired=many), TWO, HOUR)
    assert all(
        bar.y >= 0 and bar.y + bar.height <= HIGH + 0.01 and bar.x >= 0 and bar.x + bar.width <= WIDE
        for bar in chart.bars
    )
