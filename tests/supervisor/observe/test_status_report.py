from __future__ import annotations

import pytest

from jobherd.supervisor.observe.status_report import is_busy
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard


@pytest.mark.parametrize(
    ("phase", "with_database", "without"),
    [
        (Phase.IDLE, False, False),
        (Phase.CLAIMING, True, False),
        (Phase.SETTLING, True, False),
        (Phase.RUNNING, True, True),
        (Phase.TOGETHER, True, True),
    ],
)
def test_worker_that_only_waits_for_the_database_is_not_busy(phase, with_database, without):
    board = StatusBoard("test")
    board.say(CurrentWork(phase))
    board.set_idle(idle=phase is Phase.IDLE)
    assert (is_busy(board, database=True), is_busy(board, database=False)) == (with_database, without)
