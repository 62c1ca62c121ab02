"""Tests that changed progress on the status boards is reported to the gateway once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from jobherd.handlers._remote import messages as m
from jobherd.workers.ipc.counters import Policy
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.run.progress import encode_progress
from jobherd.workers.uplink.progress import EVERY, NEVER, ProgressReports

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def boards() -> Iterator[list[StatusBoard]]:
    boards = [StatusBoard(f"test-{slot}") for slot in range(3)]
    yield boards
    for board in boards:
        board.close()


def run(board: StatusBoard, job: int, *, kind: int = 0) -> None:
    board.say(CurrentWork(Phase.RUNNING, child=1, token=40 + job, job=job, kind=kind))


def tell(board: StatusBoard, fraction: float, note: str = "", data: object = None) -> None:
    board.tell_progress(encode_progress(fraction, note, data, encrypts=False))


def test_changed_progress_is_reported_once_a_second(boards):
    told: list[m.Progress] = []
    reports = ProgressReports(boards, told.append)
    run(boards[0], 1)
    run(boards[1], 2)
    tell(boards[1], 0.5, "half", {"pages": 3})
    assert reports.wake_at(busy=False) == NEVER
    reports.step(10.0, busy=False)
    assert told == []
    reports.step(10.0, busy=True)
    [report] = told
    assert (report.task, report.fraction, report.note) == (m.TaskRef(task_id=2, claim=42), 0.5, "half")
    assert orjson.loads(report.data) == {"pages": 3}
    tell(boards[0], 0.1)
    reports.step(10.5, busy=True)
    assert told == [report], "at most once a second"
    assert reports.wake_at(busy=True) == 10.0 + EVERY
    reports.step(11.0, busy=True)
    assert [(each.task.task_id, each.fraction) for each in told[1:]] == [(1, 0.1)]
    reports.step(12.0, busy=True)
    assert len(told) == 2, "unchanged progress is not reported"


def test_progress_that_is_stale_or_invalid_or_of_a_table_kind_is_not_reported(boards):
    told: list[m.Progress] = []
    ended, record, broken = boards
    run(ended, 1)
    tell(ended, 0.5)
    ended.say(CurrentWork(Phase.IDLE))
    run(record, 2, kind=record.tally.declare([Policy("own:store", table=True)])["own:store"])
    tell(record, 0.5)
    run(broken, 3)
    broken.tell_progress(b"{")
    ProgressReports(boards, told.append).step(0.0, busy=True)
    assert told == []
