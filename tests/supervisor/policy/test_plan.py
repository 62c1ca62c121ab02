"""The order of policies in a plan: each one sees the decisions of the ones before."""

from __future__ import annotations

import signal

from jobherd.supervisor.policy.actions import Dismiss, Kill, Offload
from jobherd.supervisor.policy.plan import plan
from jobherd.supervisor.policy.slot import HeldClaim
from jobherd.supervisor.policy.state_changes import apply
from tests.supervisor.policy.story import Story, without_writing


def test_plan_changes_the_slot_table_only_when_applied():
    story = Story().up()
    story.runs(0)
    story.slot_table.on_signal(signal.SIGQUIT, story.now)
    first = without_writing(plan, story.slot_table, story.now)
    assert {type(action) for action in first.actions} == {Dismiss, Kill}
    assert without_writing(plan, story.slot_table, story.now) == first
    apply(story.slot_table, first.state_changes)
    assert not plan(story.slot_table, story.now).actions


def test_claim_of_a_dismissed_worker_is_not_offloaded():
    """A dismissed worker releases its claim itself."""
    story = Story(claim_window=0.05).up()
    slot = story.runs(0)
    story.slot_table.on_held_claim(slot, HeldClaim(slot.seen.work, story.now + 1))
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    actions = story.step(1)
    assert Dismiss(slot) in actions
    assert not any(isinstance(action, Offload) for action in actions)
