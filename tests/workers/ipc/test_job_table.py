"""The job table: which short job runs, and which have succeeded, as any process reads it."""

from __future__ import annotations

import pytest

from jobherd.workers.ipc.board_memory import Word
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard

CHILD = 3


@pytest.fixture
def board():
    board = StatusBoard("test")
    yield board
    board.close()


def begin(board: StatusBoard, token: int, jobs: list[int]) -> int:
    """Begin a claim of short jobs of one kind, and return the number of its rows."""
    board.begin_claim(token, len(jobs) - 1)
    listed = board.outcomes.list_jobs(CHILD, jobs, [1] * len(jobs))
    board.outcomes.table.set_kind(0, len(jobs), kind=2, timeout=60.0, most=5, keep=7)
    return listed


def announce(board: StatusBoard, number: int, row: int, started: float) -> None:
    board.outcomes.table.starts[row] = started
    board.words[Word.SHORT] = number + row


def test_status_board_shows_the_running_short_job(board: StatusBoard):
    number = begin(board, 9, [11, 12])
    announce(board, number, 1, 100.0)
    assert board.now() == CurrentWork(Phase.RUNNING, CHILD, 9, 12, 2, 1, 5, 0, 100.0, 160.0)
    board.say(CurrentWork(Phase.SETTLING, CHILD, 9))
    assert board.now() == CurrentWork(Phase.SETTLING, CHILD, 9)
    announce(board, number, 0, 100.0)
    board.say_running(CHILD, 9, 13, 2, 1, 5, 0, 200.0, 260.0)
    now = board.now()
    assert now is not None
    assert now.job == 13


def test_each_open_claim_has_its_own_outcomes(board: StatusBoard):
    for token, jobs in {9: [11, 12], 10: [21, 22]}.items():
        number = begin(board, token, jobs)
        announce(board, number, 0, 100.0)
        assert board.outcomes.finished(token) == [], "the job is announced and not finished"
        board.outcomes.table.ends[0] = 100.5
    assert board.outcomes.finished(9) == [(11, 0.5, 100.5, 7)]
    assert board.outcomes.finished(10) == [(21, 0.5, 100.5, 7)]
    board.outcomes.clear()
    assert len(board.outcomes.finished(9)) == 1
    assert board.outcomes.finished(10) == [], "these outcomes are in the database"


def test_claim_shows_no_outcome_of_an_earlier_claim_in_the_same_rows(board: StatusBoard):
    number = begin(board, 9, [11, 12])
    announce(board, number, 0, 100.0)
    board.outcomes.table.ends[0] = 100.5
    board.outcomes.close(9)
    assert board.outcomes.finished(9) == []
    begin(board, 10, [21, 22])
    assert board.outcomes.finished(10) == []


def test_short_job_announced_for_an_earlier_claim_names_no_job_of_the_next_claim(board: StatusBoard):
    board.say(CurrentWork(Phase.SETTLING, CHILD, 8))
    announce(board, begin(board, 9, [11, 12]), 1, 100.0)
    board.outcomes.close(9)  # The claim was lost, and the worker has not written its next state yet.
    begin(board, 10, [21, 22])
    assert board.now() == CurrentWork(Phase.SETTLING, CHILD, 8)


def test_status_board_of_a_new_process_shows_no_short_job(board: StatusBoard):
    announce(board, begin(board, 9, [11, 12]), 1, 100.0)
    board.clear()
    assert board.now() == CurrentWork(Phase.BOOTING)
