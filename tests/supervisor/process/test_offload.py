"""Stragglers: when claims are offloaded, by status boards and load, and what the supervisor writes for them."""

from __future__ import annotations

import os
import time

import pytest

from jobherd.handlers._values.outcome import OK
from jobherd.supervisor.assembly import Supervisor
from jobherd.supervisor.policy.actions import Offload
from jobherd.supervisor.policy.stragglers import offload
from jobherd.supervisor.process import offload as offload_module
from jobherd.supervisor.settings.definitions import Settings
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import Ready
from jobherd.workers.job.finished import Finished
from jobherd.workers.system import procfs


@pytest.fixture
def supervisor():
    supervisor = Supervisor(Settings(), "host=/nowhere")
    yield supervisor
    supervisor.selector.close()
    supervisor.signal_pipe.close()
    for board in supervisor.boards:
        board.close()
    os.close(supervisor.control.fd)


def spec(slot_table, number, now):
    """Return the slot of a worker that is READY but has no process."""
    slot = list(slot_table.workers())[number]
    slot_table.on_fork(slot, pid=number + 1, incarnation=number + 1, now=now, started=0, jitter=0.0)
    slot_table.on_message(slot, Ready(number + 1, 7), now)
    return slot


def test_worker_under_load_keeps_its_jobs_until_another_worker_is_idle(supervisor, monkeypatch):
    slot_table, boards, now = supervisor.slot_table, supervisor.boards, time.monotonic()
    offloader = supervisor.offloader
    slots = [spec(slot_table, number, now) for number in range(2)]
    for slot in slots:
        boards[slot.number].set_idle(idle=False)
    boards[slots[0].number].begin_claim(9, 3)
    boards[slots[0].number].say(CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now - 0.1, now + 60))
    monkeypatch.setattr(procfs, "runnable_per_processor", lambda: 8.0)
    offloader.hurry(now)
    offloader.step(now)
    assert offload(slot_table, slots[0]) is None, "under load, the job may only be waiting for a processor"
    assert offloader.wake_at(now) <= now + slot_table.limits.patience + 0.001, (
        "the load must not delay the next read of the boards"
    )
    boards[slots[1].number].set_idle(idle=True)
    offloader.step(offloader.wake_at(now))
    assert offload(slot_table, slots[0]) == Offload(slots[0], 9, release=True)


def test_load_is_read_only_if_there_may_be_a_straggler(supervisor, monkeypatch):
    slot_table, boards, now = supervisor.slot_table, supervisor.boards, time.monotonic()
    offloader = supervisor.offloader
    slot = spec(slot_table, 0, now)
    board = boards[slot.number]
    board.set_idle(idle=False)
    board.begin_claim(9, 3)
    board.say(CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 60))
    looks = []
    monkeypatch.setattr(procfs, "runnable_per_processor", lambda: looks.append(now) or 1.0)
    offloader.hurry(now)
    offloader.step(now)
    assert not looks, "reading the load while short jobs run costs a hundredth of a processor"
    offloader.hurry(now)
    offloader.step(now + slot_table.limits.patience)
    assert len(looks) == 1


def test_outcome_does_not_wait_for_several_jobs_that_each_stay_below_the_limit(supervisor, monkeypatch):
    slot_table, boards, now = supervisor.slot_table, supervisor.boards, time.monotonic()
    offloader = supervisor.offloader
    patience = slot_table.limits.patience
    slot = next(iter(slot_table.workers()))
    slot_table.on_fork(slot, pid=1, incarnation=1, now=now, started=0, jitter=0.0)
    slot_table.on_message(slot, Ready(1, 7), now)
    board = boards[slot.number]
    monkeypatch.setattr(procfs, "runnable_per_processor", lambda: 1.0)
    board.begin_claim(9, 3)
    board.say_unwritten(now)
    board.say(CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now + patience / 2, now + 60))
    offloader.hurry(now)
    offloader.step(now + patience)
    assert offload(slot_table, slot) is None, "the job has run for half the time"
    due = offloader.wake_at(now)
    assert now + patience < due < now + patience * 1.25, "earlier than this job alone would be late"
    offloader.step(due)
    assert offload(slot_table, slot) == Offload(slot, 9, release=True)
    board.say(CurrentWork(Phase.RUNNING, 1, 9, 6, 1, 1, 5, 0, due, now + 60))
    offloader.hurry(due)
    offloader.step(due)
    assert offload(slot_table, slot) is None, "the next job has just started and may finish soon"
    board.say_unwritten(0.0)
    offloader.hurry(due)
    offloader.step(due + patience / 2)
    assert offload(slot_table, slot) is None
    assert offloader.wake_at(now) == pytest.approx(due + patience), "outcomes that are written no longer count"


def test_load_does_not_delay_writing_outcomes_of_this_and_the_earlier_claim(supervisor, monkeypatch):
    slot_table, boards, now = supervisor.slot_table, supervisor.boards, time.monotonic()
    offloader = supervisor.offloader
    slot = spec(slot_table, 0, now)
    board = boards[slot.number]
    board.set_idle(idle=False)
    board.outcomes.open(8)
    board.begin_claim(9, 0)
    board.say(CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 60))
    monkeypatch.setattr(procfs, "runnable_per_processor", lambda: 8.0)
    offloader.hurry(now)
    offloader.step(now)
    assert offload(slot_table, slot) is None
    offloader.step(offloader.wake_at(now))
    assert offload(slot_table, slot) == Offload(slot, 9, release=False)


def test_flush_writes_earlier_outcomes_and_leaves_later_ones_to_the_worker(supervisor, monkeypatch):
    slot_table, boards, now = supervisor.slot_table, supervisor.boards, time.monotonic()
    slot = spec(slot_table, 0, now)
    board, asked = boards[slot.number], []
    monkeypatch.setattr(
        supervisor.db,
        "ask",
        lambda name, given, *_hear: asked.append((name, given["token"], given["ids"], board.flushed)),
    )
    board.outcomes.open(8)
    board.outcomes.enter(Finished(3, OK, 0.001, now).as_entry())
    board.begin_claim(9, 3)
    running = CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 60)
    board.say(running)
    board.outcomes.enter(Finished(4, OK, 0.001, now).as_entry())
    supervisor.offloader.do(Offload(slot, 9, release=False), now)
    assert asked == [("settle/settle_jobs", 8, [3], 9), ("settle/settle_jobs", 9, [4], 9)], (
        "the flush must be announced before its requests: the worker may finish the job right after them"
    )
    assert board.revoked == 0
    board.say(running._replace(phase=Phase.SETTLING))
    supervisor.offloader.do(Offload(slot, 9, release=False), now)
    board.say(running)
    supervisor.offloader.do(Offload(slot, 10, release=False), now)
    assert len(asked) == 2, "the worker writes these outcomes itself, or has another claim"

    real = offload_module.outcomes_of

    def goes_on(board):
        found = real(board)
        board.say(running._replace(job=6))
        return found

    monkeypatch.setattr(offload_module, "outcomes_of", goes_on)
    supervisor.offloader.do(Offload(slot, 9, release=False), now)
    assert len(asked) == 2, "the worker has started another job, so the outcomes may be later ones"

    monkeypatch.setattr(offload_module, "outcomes_of", real)
    board.say(running)
    board.outcomes.enter(Finished(5, OK, 0.001, now).as_entry())
    board.outcomes.enter(Finished(7, OK, 0.001, now).as_entry())
    supervisor.offloader.do(Offload(slot, 9, release=False), now)
    assert len(asked) == 2, (
        "the worker has finished that job and one that was not announced (expired, or of the same call)"
    )


def test_offload_of_one_claim_does_not_write_outcomes_of_the_next_claim(supervisor, monkeypatch):
    slot_table, boards, now = supervisor.slot_table, supervisor.boards, time.monotonic()
    slot = spec(slot_table, 0, now)
    board, asked = boards[slot.number], []
    monkeypatch.setattr(supervisor.db, "ask", lambda name, *_: asked.append(name))
    board.begin_claim(9, 3)
    running = CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 60)
    board.say(running)
    board.outcomes.enter(Finished(4, OK, 0.001, now).as_entry())
    supervisor.offloader.do(Offload(slot, 9, release=True), now)
    assert asked == ["settle/settle_jobs", "recover/requeue_rest"]
    asked.clear()
    real = board.outcomes.claims

    def goes_on():
        board.begin_claim(10, 1)
        board.say(running._replace(token=10, job=6))
        board.outcomes.enter(Finished(6, OK, 0.001, now).as_entry())
        return real()

    monkeypatch.setattr(board.outcomes, "claims", goes_on)
    supervisor.offloader.do(Offload(slot, 9, release=True), now)
    assert asked == [], "the release was announced for one claim: the worker would treat the next one as lost"


@pytest.mark.parametrize("release", [False, True])
def test_rejected_offload_is_retried_a_pause_after_the_rejection_not_after_the_request(
    supervisor, monkeypatch, release
):
    """The server rejects a statement only after it has waited for a lock for seconds.

    Counted from the request, the pause would have passed by then, so requests would follow each other without a pause.
    """
    slot_table, boards, now = supervisor.slot_table, supervisor.boards, time.monotonic() - 60
    slot = spec(slot_table, 0, now)
    board, heard = boards[slot.number], []
    monkeypatch.setattr(supervisor.db, "ask", lambda _name, _given, answered, *_: heard.append(answered))
    board.begin_claim(9, 3)
    board.say(CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 600))
    board.outcomes.enter(Finished(4, OK, 0.001, now).as_entry())
    slot.sent.released, slot.sent.flushed = 9, (9, 5)
    supervisor.offloader.do(Offload(slot, 9, release), now)
    before = time.monotonic()
    heard[0](None)
    assert slot_table.offload_failed_at >= before


def test_runnable_processes_per_processor_are_at_least_one():
    assert procfs.runnable_per_processor() >= 1.0


def test_cleared_board_shows_no_offload_of_the_previous_worker(supervisor):
    board = supervisor.boards[0]
    board.announce_flush(9)
    board.revoke(8)
    board.begin_claim(9, 3)
    board.clear()
    assert (board.flushed, board.revoked, board.held, board.outcomes.claims()) == (0, 0, 0, [])
