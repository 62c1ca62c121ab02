"""The fields `claims` and `drains` of the gateway, a kind that claims jobs but runs none on this host.

Each test builds a slot table, passes the time as a number, and checks the planned actions.
"""

from __future__ import annotations

import signal

from jobherd.supervisor.policy.actions import Dismiss, Finish, Fork, Kill, WakeChild
from jobherd.supervisor.policy.child_kinds import GATEWAY, KINDS, WORKER
from jobherd.supervisor.policy.run_state import RunState
from tests.supervisor.policy.story import LEFT, Story, maintenance


def with_gateway(**limits) -> tuple[Story, object]:
    story = Story(has_gateway=True, **limits).up()
    return story, next(slot for slot in story.slot_table.slots if slot.kind is GATEWAY)


def test_kind_that_works_also_claims_and_drains():
    assert (WORKER.claims, WORKER.drains) == (True, True)
    assert [kind.name for kind in KINDS if kind.claims] == [kind.name for kind in KINDS if kind.drains]
    assert [kind.name for kind in KINDS if kind.claims and not kind.works] == ["gateway"]


def test_gateway_is_forked_only_if_the_settings_have_one():
    assert not [action for action in Story().step() if isinstance(action, Fork) and action.slot.kind is GATEWAY]
    _, gateway = with_gateway()
    assert gateway.alive


def test_request_wakes_the_idle_gateway_in_addition_to_one_worker():
    story, gateway = with_gateway()
    story.idle(0, 1, gateway.number)
    story.slot_table.request_wakeups()
    assert story.names() == [("WakeChild", 0), ("WakeChild", gateway.number)]
    story.slot_table.request_wakeups()
    assert story.names() == [("WakeChild", 1)], "the gateway's first wake-up is still under way"


def test_gateway_is_woken_although_every_worker_is_busy_or_there_is_none():
    story, gateway = with_gateway()
    story.idle(gateway.number)
    story.slot_table.request_wakeups()
    assert story.step() == [WakeChild(gateway)]
    story, gateway = with_gateway(workers=0)
    story.idle(gateway.number)
    story.slot_table.request_all_wakeups()
    assert story.step() == [WakeChild(gateway)]


def test_gateway_is_not_woken_if_no_remote_worker_waits():
    story, gateway = with_gateway()
    story.idle(0)
    story.slot_table.on_idle_flag(gateway, idle=False, claims=0)
    story.slot_table.request_wakeups()
    assert story.names() == [("WakeChild", 0)]


def test_drain_dismisses_the_gateway_with_the_workers_and_gives_it_the_drain_timeout():
    story, gateway = with_gateway(workers=1, drain_timeout=60.0, grace=5.0, spawn_timeout=10.0)
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    assert story.step() == [Dismiss(story.slot_table.slots[0]), Dismiss(gateway)]
    story.dies(0, LEFT)
    story.slot_table.unrecovered.clear()
    assert story.step(30) == [], "remote workers may still finish, and the maintenance process is needed until then"
    assert story.step(29.9) == []
    assert story.step(0.1) == []
    assert story.step(5) == [Kill(gateway, signal.SIGTERM)]
    assert story.step(5) == [Kill(gateway, signal.SIGKILL)]
    story.dies(gateway.number)
    story.slot_table.unrecovered.clear()
    assert story.step() == [Dismiss(maintenance(story))]
    story.dies(maintenance(story).number, LEFT)
    story.slot_table.unrecovered.clear()
    assert story.step() == [Finish(0)]


def test_drain_ends_at_once_after_the_gateway_has_exited():
    story, gateway = with_gateway(workers=1)
    story.slot_table.on_signal(signal.SIGTERM, story.now)
    story.step()
    for number in (0, gateway.number):
        story.dies(number, LEFT)
    story.slot_table.unrecovered.clear()
    assert story.step(0.01) == [Dismiss(maintenance(story))]


def test_second_request_to_stop_ends_the_gateway_within_a_second():
    story, gateway = with_gateway()
    for after in (0.0, 1.0):
        story.now += after
        story.slot_table.on_signal(signal.SIGTERM, story.now)
        story.step()
    assert story.slot_table.run_state is RunState.FAST_SHUTDOWN
    assert Kill(gateway, signal.SIGTERM) in story.step(0.5)
    assert Kill(gateway, signal.SIGKILL) in story.step(0.5)


def test_gateway_removed_by_a_reload_of_the_settings_gets_the_drain_timeout():
    story, gateway = with_gateway(drain_timeout=60.0, grace=5.0, spawn_timeout=10.0)
    story.slot_table.limits.has_gateway = False
    assert story.step() == [Dismiss(gateway)]
    assert story.step(69.9) == []
    assert story.step(0.2) == [Kill(gateway, signal.SIGKILL)]


def test_gateway_that_dies_is_replaced():
    story, gateway = with_gateway()
    story.dies(gateway.number)
    assert Fork(gateway) in story.step(0.2)
