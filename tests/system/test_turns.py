"""A flood in one queue, and workers that take turns between the queues, with real supervisors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.fleet import Stage

FLOOD, OTHERS = 400, 45
NAP = '{"seconds": 0.05}'
"""As long as the work of one claim (`claim_window`).

A worker that has 400 of these jobs has 20 s of work.
"""


def flood(stage: Stage) -> list[int]:
    """Enqueue the flood into `mail`, and after it jobs into other queues; return the ids of these."""
    stage.run(f"SELECT jobherd.enqueue('t:nap', '{NAP}', '{{\"queue\": \"mail\"}}') FROM generate_series(1, {FLOOD})")
    rows = stage.run(
        f"SELECT jobherd.enqueue('t:nap', '{NAP}', jsonb_build_object('queue', CASE WHEN n % 2 = 0 THEN 'default' ELSE 'media' END))"
        f"  FROM generate_series(1, {OTHERS}) AS n"
    )
    return [row[0] for row in rows]


def mails_before_the_last(stage: Stage, others: list[int]) -> int:
    """Return how many jobs of the flood had started before the last of the others."""
    return stage.run(
        "SELECT count(*) FROM jobherd.jobs WHERE queue = 'mail' AND started_at < (SELECT max(started_at) FROM jobherd.jobs WHERE id = ANY (%s))",
        others,
    )[0][0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"queues": "mail,default,media"},
        {"queues": "m*,default"},
        {"queue_max_concurrency": "mail=100"},
        {"max_jobs": 5, "jitter": 0},
        {"claim_size": 100, "claim_window": 0},
    ],
    ids=lambda settings: " ".join(settings) or "default",
)
def test_a_flood_in_one_queue_does_not_starve_the_others(stage: Stage, settings: dict[str, object]):
    others = flood(stage)
    fleet = stage.run_fleet(workers=2, **settings)
    stage.wait_all(others, "completed")
    if "claim_size" not in settings:  # with whole batches, each worker may have claimed one batch of the flood before
        assert mails_before_the_last(stage, others) < 3 * OTHERS
    left = stage.run("SELECT count(*) FROM jobherd.jobs WHERE queue = 'mail' AND state <> 'completed'")[0][0]
    # not `ready`: with whole batches two workers may have claimed the rest by now
    assert left > 0, "the flood was drained first"
    fleet.stop()


def test_queue_weights_are_shares_of_the_working_time(stage: Stage):
    """While both queues hold jobs, the one with three times the weight gets three times the jobs of the same length."""
    stage.run(f"SELECT jobherd.enqueue('t:nap', '{NAP}', '{{\"queue\": \"mail\"}}') FROM generate_series(1, {FLOOD})")
    others = [
        row[0]
        for row in stage.run(
            f"SELECT jobherd.enqueue('t:nap', '{NAP}', '{{\"queue\": \"default\"}}') FROM generate_series(1, 120)"
        )
    ]
    fleet = stage.run_fleet(workers=2, queue_weights="default=3")
    stage.wait_all(others, "completed")
    assert 20 <= mails_before_the_last(stage, others) <= 70
    fleet.stop()


@pytest.mark.parametrize("settings", [{}, {"queues": "mail,default,media"}])
def test_in_strict_order_the_first_queue_is_emptied_first(stage: Stage, settings: dict[str, object]):
    others = flood(stage)
    fleet = stage.run_fleet(workers=4, queue_order="strict", **settings)
    stage.wait_all(others, "completed")
    assert mails_before_the_last(stage, others) == FLOOD
    fleet.stop()


def test_empty_or_paused_queue_uses_up_no_turn(stage: Stage):
    """No worker stays idle or claims twice because it is the turn of a queue without jobs for it."""
    stage.run("SELECT jobherd.pause('media')")
    others = flood(stage)
    fleet = stage.run_fleet(workers=2, poll="300s")
    open_ = [job for number, job in enumerate(others, 1) if number % 2 == 0]
    stage.wait_all(open_, "completed")
    assert mails_before_the_last(stage, open_) < 3 * OTHERS
    stage.run("SELECT jobherd.cancel(id) FROM jobherd.jobs WHERE queue = 'mail' AND state = 'ready'")
    stage.run("SELECT jobherd.resume('media')")
    stage.wait_all(others, "completed")
    fleet.stop()
