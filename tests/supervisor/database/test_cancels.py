"""The check for canceled jobs whose notification was lost. The session is imitated; each test passes the time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jobherd.supervisor.database.cancels import EVERY, Cancels
from jobherd.supervisor.database.connection import Link
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.workers.ipc.current_work import CurrentWork, Phase

NEVER = float("inf")


@pytest.fixture
def parts():
    """The check, a slot table of one idle worker, and the callbacks of the queries so far."""
    slot_table, asked = SlotTable(Limits(workers=1)), []
    slot_table.on_registered(3)
    slot_table.on_fork(slot_table.slots[0], pid=1, incarnation=7, now=1.0, started=0, jitter=0.0)

    def ask(name, parameters, answered):
        assert (name, parameters) == ("control/find_cancels", {"supervisor": 3})
        asked.append(answered)

    db = SimpleNamespace(link=Link.UP, ask=ask)
    return SimpleNamespace(
        slot_table=slot_table, slot=slot_table.slots[0], asked=asked, db=db, cancels=Cancels(db, slot_table)
    )


def runs(parts, *, since):
    parts.slot.seen.work = CurrentWork(Phase.RUNNING, 7, 9, 4, 1, 1, 5, 0, since, 600.0)


def test_cancels_are_queried_each_second_from_one_second_after_a_jobs_start(parts):
    runs(parts, since=100.0)
    for number, due in enumerate((100.0 + EVERY, 100.0 + 2 * EVERY, 100.0 + 3 * EVERY)):
        assert parts.cancels.wake_at(due - EVERY) == due
        parts.cancels.step(due - 0.01)
        assert len(parts.asked) == number, "it is not due yet"
        parts.cancels.step(due)
        assert len(parts.asked) == number + 1
    assert EVERY == 1.0
    parts.asked[-1]([("7", "9", "4")])
    assert parts.slot.seen.cancels == [(9, 4)]


def test_cancels_are_not_queried_while_no_job_runs_or_the_session_is_away(parts):
    assert parts.cancels.wake_at(100.0) == NEVER
    parts.cancels.step(100.0)
    runs(parts, since=100.0)
    parts.db.link = Link.AWAY
    assert parts.cancels.wake_at(200.0) == NEVER
    parts.cancels.step(200.0)
    assert parts.asked == []
