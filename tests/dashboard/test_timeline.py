"""The timeline of a job: every phase in order, wide enough to see, and a correct axis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobherd.workers.dashboard.timeline import APART, MOST, timeline

BORN = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
JOB = {"created_at": BORN, "run_at": BORN, "started_at": None, "finished_at": None, "state": "ready", "attempts": 0}


def at(seconds):
    return BORN + timedelta(seconds=seconds)


def attempt(number, start, end, outcome="retry"):
    began = {} if start is None else {"started_at": at(start).isoformat()}
    return {"attempt": number, "outcome": outcome, "finished_at": at(end).isoformat(), **began}


def life(history=(), now=100.0, **changed):
    return timeline(JOB | changed, list(history), at(now))


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (life(), "waiting: 1 min 40 s"),
        (life(state="scheduled", run_at=at(7200)), "not due yet: 2 h"),
        (life(state="scheduled", run_at=at(40)), "not due yet: 40 s; waiting: 1 min"),
        (life(state="running", started_at=at(30), attempts=1), "waiting: 30 s; attempt 1: running: 1 min 10 s"),
        (
            life([attempt(1, 10, 12)], state="retrying", run_at=at(130), attempts=1),
            "waiting: 10 s; attempt 1: retry: 2.0 s; not due yet: 1 min 58 s",
        ),
        (
            life([attempt(1, 10, 12), attempt(2, 42, 43, "failed")], state="failed", run_at=at(40), started_at=at(42), finished_at=at(43), attempts=2),
            "waiting: 10 s; attempt 1: retry: 2.0 s; not due yet: 28 s; waiting: 2.0 s; attempt 2: failed: 1.0 s",
        ),
        (life([attempt(0, None, 5, "cancelled")], state="cancelled", finished_at=at(5)), "waiting: 5.0 s; cancelled before it started: 0 s"),
        (life([attempt(1, 5, 5.0001, "completed")], state="completed", started_at=at(5), finished_at=at(5.0001)), "waiting: 5.0 s; attempt 1: completed: 100 µs"),
    ],
)  # fmt: skip
def test_timeline_has_every_phase_of_a_job(picture, says):
    assert picture.sentence == says


@pytest.mark.parametrize("attempts", [0, 1, 2, 15, 200])
def test_short_phases_are_visible_and_phases_do_not_overlap(attempts):
    history = [attempt(n + 1, 3600 * n, 3600 * n + 0.002) for n in range(attempts)]
    picture = life(history, now=3600 * 300, state="retrying", run_at=at(3600 * 301), attempts=attempts)
    assert len(picture.stretches) <= MOST
    edge = 0.0
    for stretch in picture.stretches:
        assert stretch.left == pytest.approx(edge, abs=0.02)
        assert stretch.width >= 1.0
        edge = stretch.left + stretch.width
    assert edge == pytest.approx(100, abs=0.05)
    places = [tick.at for tick in picture.ticks]
    assert all(later - earlier >= APART for earlier, later in zip(places, places[1:], strict=False))
    assert picture.to_scale == (attempts == 0)
    assert [picture.ticks[0].text, picture.ticks[-1].text] == ["0", "+12 d"]


def test_clock_that_went_backwards_and_invalid_times_do_not_break_the_timeline():
    picture = life(
        [attempt(1, 50, 20), {"attempt": 2, "finished_at": "yesterday"}], now=-5, state="retrying", attempts=1
    )
    assert all(stretch.seconds >= 0 and stretch.width > 0 for stretch in picture.stretches)
