"""When a claim is offloaded: a fleet, what its boards showed, and the action that follows."""

from __future__ import annotations

import pytest

from jobherd.supervisor.policy.actions import Offload
from jobherd.supervisor.policy.slot import HeldClaim
from jobherd.supervisor.policy.stragglers import LONGEST_PATIENCE, RELEASE_AFTER_CHANGE, RETRY, offload, smoothed_load
from tests.supervisor.policy.story import Story


def straggler(story, slot, at=None, *, others=True, unwritten=0.0, earlier=False):
    """Return the action after a look at the board: "release", "flush" or None."""
    held = HeldClaim(slot.seen.work, story.now if at is None else at, others, unwritten, earlier)
    story.fleet.on_held_claim(slot, held)
    action = offload(story.fleet, slot)
    assert action is None or (action.slot, action.token) == (slot, slot.seen.work.token)
    return None if action is None else "release" if action.release else "flush"


def offloads(story):
    """Plan, and return what was offloaded."""
    return [action.release for action in story.step() if isinstance(action, Offload)]


@pytest.mark.promise("E7")
def test_a_changed_gate_releases_unstarted_jobs_however_long_they_may_wait_otherwise():
    story = Story(claim_window=0.0).up()
    slot = story.runs(0)
    assert straggler(story, slot, unwritten=story.now, earlier=True) is None, "whole batches, whatever they take"
    story.fleet.on_gates_changed(story.now)
    assert straggler(story, slot) == "release"
    assert offloads(story) == [True]
    assert offloads(story) == [], "it was sent"
    slot.sent.released = 0
    assert straggler(story, slot, story.now + RELEASE_AFTER_CHANGE) is None


def test_a_board_that_was_read_before_a_change_says_nothing_about_the_time_after_it():
    story = Story(claim_window=0.0).up()
    slot = story.runs(0)
    assert straggler(story, slot) is None
    story.fleet.on_gates_changed(story.now + 0.1)
    assert offload(story.fleet, slot) is None, "the child may run another job by now"


def test_a_failed_release_is_repeated_after_a_pause():
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    token = slot.seen.work.token

    def failed(after, of=token):
        story.fleet.on_offload_failed(slot, of, release=True, now=story.now + after)

    assert straggler(story, slot, story.now + 1) == "release"
    assert offloads(story) == [True]
    assert straggler(story, slot, story.now + 1.1) is None, "the request is on its way"
    failed(1.1)
    assert offload(story.fleet, slot) is None, "that board was read before the failure"
    assert straggler(story, slot, story.now + 1.1 + RETRY - 0.1) is None
    assert straggler(story, slot, story.now + 1.2 + RETRY) == "release"
    assert offloads(story) == [True]
    failed(2.2, token + 1)
    assert straggler(story, slot, story.now + 60) is None, "that request was about another claim"
    failed(60)
    assert straggler(story, slot, story.now + 60.1) is None
    story.fleet.on_gates_changed(story.now + 60.2)
    assert straggler(story, slot, story.now + 60.2) == "release", "a user has asked for it"


def test_a_claim_without_other_jobs_is_not_released_but_the_outcomes_of_the_claim_before_are_written():
    """The job may be in a transaction that locks the row of its claim.

    A release would wait for that lock, and the requests behind the release too.
    """
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    assert straggler(story, slot, story.now + 1, others=False, earlier=True) == "flush"
    assert offloads(story) == [False]
    assert straggler(story, slot, story.now + 60, others=False, earlier=True) is None
    story.fleet.on_gates_changed(story.now + 60)
    assert straggler(story, slot, story.now + 60, others=False) is None


def test_a_job_that_may_only_wait_for_a_processor_keeps_the_other_jobs_for_longer_while_no_worker_is_idle():
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    base = story.fleet.limits.patience

    def late(after):
        return straggler(story, slot, story.now + after) == "release"

    assert (late(base * 0.99), late(base)) == (False, True)
    story.fleet.on_load(smoothed_load(story.fleet.load, 6.0))
    assert (late(base * 5.9), late(base * 6.1)) == (False, True)
    story.fleet.on_load(smoothed_load(story.fleet.load, 1.0))
    assert not late(base * 4.9), "a single sample says little"
    story.fleet.on_load(smoothed_load(story.fleet.load, 600.0))
    assert (late(LONGEST_PATIENCE * 0.99), late(LONGEST_PATIENCE)) == (False, True)
    story.fleet.on_load(1.0)
    assert late(base), "a worker is there to run them"
    story.fleet.on_load(smoothed_load(story.fleet.load, 6.0))
    story.fleet.on_gates_changed(story.now)
    assert late(0.0), "whatever the load"


def test_the_outcomes_before_a_job_that_may_only_wait_for_a_processor_are_written_once():
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    base, begun = story.fleet.limits.patience, story.now
    story.fleet.on_load(smoothed_load(story.fleet.load, 10.0))

    def seen(after, *, unwritten=begun, earlier=False):
        return straggler(story, slot, begun + after, unwritten=unwritten, earlier=earlier)

    token, job = slot.seen.work.token, slot.seen.work.job
    assert seen(base, unwritten=0.0) is None, "none waits"
    assert seen(base, unwritten=0.0, earlier=True) == "flush", "those of the claim before may"
    assert (seen(base * 0.99), seen(base)) == (None, "flush")
    assert offloads(story) == [False]
    assert slot.sent.flushed == (token, job)
    assert seen(base * 1.5) is None, "once is enough: nothing is added while that job runs"
    story.fleet.on_offload_failed(slot, token + 1, release=False, now=begun)
    assert seen(base * 1.5) is None, "that request was about another claim"
    story.fleet.on_offload_failed(slot, token, release=False, now=begun + base * 1.5 - RETRY)
    assert seen(base * 1.49) is None, "what has stopped that request may last"
    assert seen(base * 1.5) == "flush"
    assert offloads(story) == [False]
    slot.seen.work = slot.seen.work._replace(job=job + 1)
    assert seen(base * 2) == "flush", "another job holds up what came after"
    assert offloads(story) == [False]
    assert seen(base * 10) == "release", "it is released in the end"
    assert offloads(story) == [True]
    assert seen(base * 11) is None, "all of it is written"
