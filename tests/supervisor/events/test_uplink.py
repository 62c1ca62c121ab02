"""What the supervisor does at events of its uplink to a gateway."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jobherd.supervisor.events.uplink import UplinkEvents
from jobherd.supervisor.policy.child_kinds import WORKER
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.uplink.events import GatesChanged, HostRejected, JobCanceled, JobLost
from jobherd.workers.ipc.current_work import CurrentWork, Phase


class Recorder:
    """Replaces a part and records the names of the methods that are called."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *_: self.calls.append(name)


@pytest.fixture
def parts():
    slot_table = SlotTable(Limits(workers=1, max_workers=1, has_uplink=True))
    slot_table.on_fork(slot_table.slots[0], pid=1, incarnation=7, now=1.0, started=0, jitter=0.0)
    link = SimpleNamespace(epoch=0, connected=False, trouble="", happened=[])
    control, boards, recovery, offloader = SimpleNamespace(lease_deadline=0.0), Recorder(), Recorder(), Recorder()
    control.gates_changed = lambda: setattr(control, "gates", True)
    events = UplinkEvents(link, slot_table, control, boards=boards, recovery=recovery, offloader=offloader)
    return SimpleNamespace(
        slot_table=slot_table,
        link=link,
        control=control,
        boards=boards,
        recovery=recovery,
        offloader=offloader,
        events=events,
    )


def test_new_uplink_ends_the_backoff_of_workers_and_crash_recovery(parts):
    parts.events.step(1.0)
    assert not parts.slot_table.kinds_to_wake
    parts.link.epoch = 1
    parts.events.step(2.0)
    assert (parts.slot_table.kinds_to_wake, parts.recovery.calls) == ({WORKER}, ["hurry"])
    parts.events.step(3.0)
    assert parts.recovery.calls == ["hurry"], "only once for each connection"


def test_lost_gateway_is_logged_once_with_the_reason(parts, caplog):
    caplog.set_level("INFO")
    parts.link.trouble = "connection refused"
    for _ in range(2):
        parts.events.step(1.0)
    parts.link.connected = True
    for _ in range(2):
        parts.events.step(2.0)
    assert parts.slot_table.database_since == 2.0
    parts.link.connected, parts.link.trouble = False, "it drains"
    for _ in range(2):
        parts.events.step(3.0)
    assert parts.slot_table.database_since is None
    assert caplog.messages == [
        "no gateway: connection refused",
        "the gateway is there",
        "the gateway is away: it drains",
    ]


def test_each_event_is_passed_to_the_part_that_handles_it(parts):
    slot = parts.slot_table.slots[0]
    parts.link.happened = [JobCanceled(7, 9, 4), GatesChanged(), HostRejected("bad token")]
    assert parts.events.wake_at(1.0) == 0.0
    parts.events.step(1.0)
    assert parts.link.happened == []
    assert slot.seen.cancels == [(9, 4)]
    assert (parts.offloader.calls, parts.control.gates) == (["hurry"], True)
    assert parts.slot_table.rejected


def runs(parts, job):
    """Make the status board show that this job runs, from the next read on."""
    slot = parts.slot_table.slots[0]
    work = CurrentWork(Phase.RUNNING, 7, 9, job, 1, 1, 5, 0, 1.0, 60.0)
    parts.boards.__dict__["step"] = lambda now: parts.slot_table.on_status(slot, work=work, started=1, rss=0)
    return slot


def test_worker_that_runs_a_job_lost_to_another_worker_is_ended(parts):
    slot = runs(parts, job=4)
    parts.link.happened = [JobLost(7, 9, 4)]
    parts.events.step(5.0)
    assert (slot.process.lost_at, slot.seen.cancels) == (5.0, [])


def test_unstarted_job_lost_to_another_worker_is_canceled(parts):
    slot = runs(parts, job=3)
    parts.link.happened = [JobLost(7, 9, 4), JobLost(99, 9, 3)]
    parts.events.step(5.0)
    assert (slot.process.lost_at, slot.seen.cancels) == (0.0, [(9, 4)])


def test_rejected_host_continues_if_it_was_accepted_before(parts):
    parts.link.connected = True
    parts.events.step(1.0)
    parts.link.connected, parts.link.happened = False, [HostRejected("the token was withdrawn")]
    parts.events.step(2.0)
    assert not parts.slot_table.rejected


def test_lease_deadline_for_exclusive_jobs_comes_from_the_control_block(parts):
    parts.events.step(1.0)
    assert parts.slot_table.lease_deadline == float("inf"), "before the first claim there is no deadline"
    parts.control.lease_deadline = 31.0
    parts.events.step(2.0)
    assert parts.slot_table.lease_deadline == 31.0
