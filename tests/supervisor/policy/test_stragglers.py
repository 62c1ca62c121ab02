"""When the outcomes or unstarted jobs of a claim are offloaded from a worker with a long job."""

from __future__ import annotations

import pytest

from jobherd.supervisor.policy.actions import Offload
from jobherd.supervisor.policy.slot import HeldClaim
from jobherd.supervisor.policy.stragglers import LONGEST_PATIENCE, RELEASE_AFTER_CHANGE, RETRY, offload, smoothed_load
from tests.supervisor.policy.story import Story


def straggler(story, slot, at=None, *, others=True, unwritten=0.0, earlier=False):
    """Return the action after the board was read: "release", "flush" or None."""
    held = HeldClaim(slot.seen.work, story.now if at is None else at, others, unwritten, earlier)
    story.slot_table.on_held_claim(slot, held)
    action = offload(story.slot_table, slot)
    assert action is None or (action.slot, action.token) == (slot, slot.seen.work.token)
    return None if action is None else "release" if action.release else "flush"


def offloads(story):
    """Plan, and return what was offloaded."""
    return [action.release for action in story.step() if isinstance(action, Offload)]


@pytest.mark.promise("E7")
def test_changed_pause_or_limit_releases_unstarted_jobs_even_with_a_claim_window_of_zero():
    story = Story(claim_window=0.0).up()
    slot = story.runs(0)
    assert straggler(story, slot, unwritten=story.now, earlier=True) is None, (
        "with claim_window=0, unstarted jobs stay with the claim however long it takes"
    )
    story.slot_table.on_gates_changed(story.now)
    assert straggler(story, slot) == "release"
    assert offloads(story) == [True]
    assert offloads(story) == [], "the request was sent already"
    slot.sent.released = 0
    assert straggler(story, slot, story.now + RELEASE_AFTER_CHANGE) is None


def test_board_read_before_a_changed_pause_or_limit_releases_nothing():
    story = Story(claim_window=0.0).up()
    slot = story.runs(0)
    assert straggler(story, slot) is None
    story.slot_table.on_gates_changed(story.now + 0.1)
    assert offload(story.slot_table, slot) is None, "the worker may run another job by now"


def test_failed_release_is_repeated_after_a_pause():
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    token = slot.seen.work.token

    def failed(after, of=token):
        story.slot_table.on_offload_failed(slot, of, release=True, now=story.now + after)

    assert straggler(story, slot, story.now + 1) == "release"
    assert offloads(story) == [True]
    assert straggler(story, slot, story.now + 1.1) is None, "the request was sent already"
    failed(1.1)
    assert offload(story.slot_table, slot) is None, "the board was read before the failure"
    assert straggler(story, slot, story.now + 1.1 + RETRY - 0.1) is None
    assert straggler(story, slot, story.now + 1.2 + RETRY) == "release"
    assert offloads(story) == [True]
    failed(2.2, token + 1)
    assert straggler(story, slot, story.now + 60) is None, "the failed request was about another claim"
    failed(60)
    assert straggler(story, slot, story.now + 60.1) is None
    story.slot_table.on_gates_changed(story.now + 60.2)
    assert straggler(story, slot, story.now + 60.2) == "release", "a changed pause or limit applies at once"


def test_claim_without_unstarted_jobs_is_not_released_but_earlier_outcomes_are_written():
    """The job may have a transaction that locks the row of its claim.

    A release would wait for that lock, and so would all requests behind it.
    """
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    assert straggler(story, slot, story.now + 1, others=False, earlier=True) == "flush"
    assert offloads(story) == [False]
    assert straggler(story, slot, story.now + 60, others=False, earlier=True) is None
    story.slot_table.on_gates_changed(story.now + 60)
    assert straggler(story, slot, story.now + 60, others=False) is None


def test_unstarted_jobs_are_released_later_under_load_while_no_worker_is_idle():
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    base = story.slot_table.limits.patience

    def late(after):
        return straggler(story, slot, story.now + after) == "release"

    assert (late(base * 0.99), late(base)) == (False, True)
    story.slot_table.on_load(smoothed_load(story.slot_table.load, 6.0))
    assert (late(base * 5.9), late(base * 6.1)) == (False, True)
    story.slot_table.on_load(smoothed_load(story.slot_table.load, 1.0))
    assert not late(base * 4.9), "a single sample must not change the load much"
    story.slot_table.on_load(smoothed_load(story.slot_table.load, 600.0))
    assert (late(LONGEST_PATIENCE * 0.99), late(LONGEST_PATIENCE)) == (False, True)
    story.slot_table.on_load(1.0)
    assert late(base), "an idle worker can run the released jobs"
    story.slot_table.on_load(smoothed_load(story.slot_table.load, 6.0))
    story.slot_table.on_gates_changed(story.now)
    assert late(0.0), "a changed pause or limit releases at any load"


def test_outcomes_before_a_long_job_are_written_once_under_load():
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    base, begun = story.slot_table.limits.patience, story.now
    story.slot_table.on_load(smoothed_load(story.slot_table.load, 10.0))

    def seen(after, *, unwritten=begun, earlier=False):
        return straggler(story, slot, begun + after, unwritten=unwritten, earlier=earlier)

    token, job = slot.seen.work.token, slot.seen.work.job
    assert seen(base, unwritten=0.0) is None, "no outcome waits"
    assert seen(base, unwritten=0.0, earlier=True) == "flush", "outcomes of the earlier claim may wait"
    assert (seen(base * 0.99), seen(base)) == (None, "flush")
    assert offloads(story) == [False]
    assert slot.sent.flushed == (token, job)
    assert seen(base * 1.5) is None, "once is enough: no outcome is added while that job runs"
    story.slot_table.on_offload_failed(slot, token + 1, release=False, now=begun)
    assert seen(base * 1.5) is None, "the failed request was about another claim"
    story.slot_table.on_offload_failed(slot, token, release=False, now=begun + base * 1.5 - RETRY)
    assert seen(base * 1.49) is None, "a retry too soon may fail for the same reason"
    assert seen(base * 1.5) == "flush"
    assert offloads(story) == [False]
    slot.seen.work = slot.seen.work._replace(job=job + 1)
    assert seen(base * 2) == "flush", "later outcomes wait behind another job"
    assert offloads(story) == [False]
    assert seen(base * 10) == "release", "the unstarted jobs are released in the end"
    assert offloads(story) == [True]
    assert seen(base * 11) is None, "all outcomes are written already"
