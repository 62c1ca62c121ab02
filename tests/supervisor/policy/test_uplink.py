"""A supervisor with an uplink to a gateway: its children, the order in which they exit, and rejection by the gateway.

Each test builds a slot table, passes the time as a number, and checks the planned actions.
"""

from __future__ import annotations

import signal

from jobherd.supervisor.policy.actions import Dismiss, Finish, Fork
from jobherd.supervisor.policy.child_kinds import UPLINK
from jobherd.supervisor.policy.run_state import RunState
from tests.supervisor.policy.story import LEFT, Story


def story(**limits) -> tuple[Story, object]:
    story = Story(has_uplink=True, **{"workers": 1} | limits)
    return story, next(slot for slot in story.slot_table.slots if slot.kind is UPLINK)


def test_supervisor_with_an_uplink_has_workers_and_no_maintenance_process():
    told, _ = story(workers=2)
    forked = [action.slot.kind.name for action in told.step() if isinstance(action, Fork)]
    assert forked == ["worker", "worker", "uplink"]
    assert "uplink" not in [action.slot.kind.name for action in Story().step() if isinstance(action, Fork)]


def test_drain_dismisses_the_uplink_after_the_workers_and_their_recovery():
    told, uplink = story()
    told.up()
    told.slot_table.on_signal(signal.SIGTERM, told.now)
    assert [action.slot.number for action in told.step() if isinstance(action, Dismiss)] == [0]
    death = told.dies(0, LEFT)
    assert told.step() == [], "the worker's outcomes may not be written yet"
    told.slot_table.on_recovered(death.incarnation, told.now)
    assert told.step() == [Dismiss(uplink)]
    told.dies(uplink.number, LEFT)
    assert told.step() == [Finish(0)], "the uplink itself needs no recovery"


def test_supervisor_drains_with_exit_code_78_if_no_gateway_ever_accepted_its_host():
    told, _ = story()
    told.up()
    told.slot_table.rejected = True
    told.step()
    assert (told.slot_table.exit_code, told.slot_table.run_state) == (78, RunState.DRAINING)
