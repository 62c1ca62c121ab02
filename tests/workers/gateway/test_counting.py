"""Tests the counters of remote workers on the gateway's status board."""

from __future__ import annotations

import asyncio

import pytest

from jobherd.handlers._remote import messages as m
from jobherd.handlers._values.outcome import Outcome
from jobherd.workers.gateway import sessions
from jobherd.workers.gateway.actions import Settle, Status, TaskRef
from jobherd.workers.gateway.claim_timing import ClaimTiming
from jobherd.workers.gateway.counting import AttemptCounts, StreamCounts
from jobherd.workers.gateway.outcome_recorder import Recorded
from jobherd.workers.gateway.peer import Peer
from jobherd.workers.gateway.requests import Outcomes, Reported
from jobherd.workers.gateway.settlements import Transaction
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.counters import OUTCOMES
from jobherd.workers.ipc.gateway_counts import COUNTERS
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.job.finished import Finished
from jobherd.workers.process.spec import ChildSettings, ChildSpec
from tests.workers.gateway import standing


@pytest.fixture
def board():
    board = StatusBoard("test")
    yield board
    board.close()


def counted(board: StatusBoard) -> dict[str, int]:
    (counts,) = [each for each in board.tally.kind_counts() if each.name == "x"]
    return {name: number for name, number in zip(OUTCOMES, counts.outcomes, strict=True) if number} | {
        "timeouts": counts.timeouts,
        "ran": sum(counts.buckets),
    }


def test_attempts_are_counted_by_kind_outcome_and_code(board):
    session = standing.out().sessions[7]
    timeout = Outcome("retry", delay=1.0, error="late", code="JOB_TIMEOUT")
    AttemptCounts(board.tally).count(
        session,
        {
            TaskRef(11, 41): Finished(11, timeout, 2.0),
            TaskRef(12, 41): Finished(12, Outcome("expired", started=False), None),
            TaskRef(13, 41): Finished(13, timeout, 2.0),  # of another session
            TaskRef(14, 41): None,  # its result is already on its way
        },
    )
    assert counted(board) == {"retry": 1, "expired": 1, "timeouts": 1, "ran": 1}
    assert [each for each in board.tally.error_counts() if each[2]] == [("x", "JOB_TIMEOUT", 1)]


def test_counters_continue_in_the_next_gateway_process(board):
    done = {TaskRef(11, 41): Finished(11, Outcome("ok"), 0.5)}
    for _ in range(2):
        AttemptCounts(board.tally).count(standing.out().sessions[7], done)
        board.clear()
    assert counted(board) == {"ok": 2, "timeouts": 0, "ran": 2}


def test_streams_and_slots_are_on_the_board_until_the_process_is_replaced(board):
    spec = ChildSpec(
        kind="gateway", slot=0, incarnation=1, supervisor=1, parent=1, wake=-1, report=-1, board=board,
        control=ControlBlock(), settings=ChildSettings(dsn=""),
    )  # fmt: skip
    timing, state = ClaimTiming(spec), standing.out()
    timing._control.notified = True
    standing.assignment.on_ready(state, 1, 2, standing.ANY, 5, lease=0.0, now=standing.NOW)
    timing.rest(state, standing.NOW)
    assert (board.wanted, board.held) == (5, 2)
    sessions.on_break(state, 1, standing.NOW)
    timing.rest(state, standing.NOW)
    assert (board.wanted, board.held) == (0, 2)
    metrics = StreamCounts(board)
    for peer, change in ((Peer(1), 1), (Peer(2, "dispatch"), 1), (Peer(3), 1), (Peer(1), -1)):
        metrics.connected(peer, change)
    assert board.streams == {"work": 1, "dispatch": 1}
    board.say_wanted(4)
    board.clear()
    assert (board.streams, board.wanted) == ({"work": 0, "dispatch": 0}, 0)


def test_messages_sessions_and_refusals_of_streams_are_counted(board):
    metrics, peer = StreamCounts(board), Peer(1)

    async def write() -> None:
        for tasks in (0, 3, 1):
            message = m.WorkResponse(tasks=m.TaskBatch(tasks=[m.Task()] * tasks))
            await metrics.write(peer, message, asyncio.sleep(0))

    asyncio.run(write())
    metrics.received()
    for status in Status:
        metrics.refused(status)
    metrics.session("ended")
    board.clear()  # The next gateway of the slot continues them.
    counts = board.remote
    assert counts.counter("messages") == {"received": 1, "sent": 3}
    assert counts.histogram("tasks_per_message") == ((1, 0, 1, 0, 0, 0, 0, 0, 0, 0), 4.0)
    buckets, seconds = counts.histogram("write_wait")
    assert (sum(buckets), seconds > 0) == (3, True)
    assert counts.counter("sessions") == {"opened": 0, "resumed": 0, "ended": 1}
    assert counts.counter("refused") == dict.fromkeys(COUNTERS["refused"], 1) | {"invalid": 3}


def test_results_are_counted_only_once_they_are_recorded(board):
    metrics = StreamCounts(board)
    refs = [TaskRef(number, 41) for number in range(4)]
    of_stream = Reported(Settle(1, 1, 7, 107, tuple(refs)), "", {})
    own = Reported(
        Settle(0, 0, 7, 107, (TaskRef(9, 41),)), "", {}
    )  # From the gateway: a task too large for the client.
    request = Outcomes([of_stream, own], Transaction((), (), ()))
    metrics.answered(request, ValueError("the worker sends them again"))
    assert not any(board.remote.counter("results").values())
    metrics.answered(request, Recorded(lost={refs[0]}, reworded={refs[1]}))
    metrics.invalid(2)
    assert board.remote.counter("results") == {"recorded": 2, "lost": 1, "invalid": 2, "unstorable": 1}


def test_result_that_is_both_lost_and_reworded_is_counted_only_as_lost(board):
    ref = TaskRef(11, 41)
    reported = Reported(Settle(1, 1, 7, 107, (ref,)), "", {})
    answer = Recorded(lost={ref}, reworded={ref})
    StreamCounts(board).answered(Outcomes([reported], Transaction((), (), ())), answer)
    assert board.remote.counter("results") == {"recorded": 0, "lost": 1, "invalid": 0, "unstorable": 0}
