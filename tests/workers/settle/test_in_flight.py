"""What a worker concludes from the two words of the status board in which the supervisor announces an offload."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jobherd.handlers._values.outcome import OK
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.job.finished import Finished
from jobherd.workers.settle.in_flight import InFlightClaim

FINISHED = [Finished(1, OK, 0.001), Finished(2, OK, 0.001)]


@pytest.fixture
def board():
    board = StatusBoard("in-flight")
    yield board
    board.close()


def in_flight(board, *, token=9, running=False):
    unused = SimpleNamespace()
    claim = InFlightClaim(
        unused, unused, board, unused, unstarted=lambda row, cancelled: row, is_running=lambda: running, ends=unused
    )
    claim.token = token
    return claim


def test_without_an_offload_only_the_worker_records_outcomes(board):
    claim = in_flight(board)
    assert claim._own(FINISHED) == FINISHED
    assert not claim.is_released(9)
    assert not claim.is_flushed()


@pytest.mark.parametrize("token", [8, 10])
def test_offload_of_another_claim_does_not_affect_this_claim(board, token):
    """Otherwise the worker would release jobs of a valid claim, or overlook that it lost its claim."""
    board.revoke(token)
    board.announce_flush(token)
    claim = in_flight(board)
    assert not claim.is_released(9)
    assert not claim.is_flushed()
    assert claim._own(FINISHED) == FINISHED


@pytest.mark.parametrize("running", [False, True])
def test_supervisor_may_have_recorded_each_outcome_of_a_released_claim(board, running):
    board.revoke(9)
    claim = in_flight(board, running=running)
    assert claim.is_released(9)
    assert claim._own(FINISHED) == ()


def test_only_the_worker_records_the_last_outcome_after_a_flush_unless_a_job_runs(board):
    board.announce_flush(9)
    assert in_flight(board).is_flushed()
    assert in_flight(board)._own(FINISHED) == FINISHED[-1:]
    assert in_flight(board, running=True)._own(FINISHED) == (), "the flush may have been during this later job"


@pytest.mark.parametrize(("offloaded", "own"), [(8, ()), (9, ()), (7, FINISHED), (10, FINISHED)])
def test_offload_of_either_claim_may_have_recorded_outcomes_of_the_previous_claim(board, offloaded, own):
    board.announce_flush(offloaded)
    assert in_flight(board)._own_behind(8, FINISHED) == own
