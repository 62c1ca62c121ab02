"""Eight busy loops on the only processor of two supervisors.

No lease is lost, no process is killed as hung, and each job runs once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Fleet, Stage

LOOPS = 8
BEATS = 3
BUSY = "print(flush=True)\nwhile True: pass"


@contextlib.contextmanager
def busy_loops(processor: int) -> Iterator[list[int]]:
    """Yield the pids of processes that keep the processor busy; they run when the block starts."""
    with contextlib.ExitStack() as stack:
        loops = []
        for _ in range(LOOPS):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE))
            stack.callback(loop.kill)
            os.sched_setaffinity(loop.pid, [processor])
            loops.append(loop)
        for loop in loops:
            assert loop.stdout is not None
            loop.stdout.readline()
        yield [loop.pid for loop in loops]


def keep_to(processor: int, fleet: Fleet) -> None:
    for pid in fleet.processes():
        os.sched_setaffinity(pid, [processor])


def test_two_supervisors_that_share_a_busy_processor_lose_no_lease(stage: Stage):
    processor = min(os.sched_getaffinity(0))
    fleets = [stage.run_fleet(workers=2, lease="12s", poll="1s", sweep="1s") for _ in range(2)]
    before = [fleet.workers() | {-1: fleet.maintenance()} for fleet in fleets]
    beats: dict[int, set[object]] = {}
    jobs: list[int] = []

    def have_beaten() -> bool:
        for supervisor, at in stage.run("SELECT id, beat_at FROM jobherd.supervisors"):
            beats.setdefault(supervisor, set()).add(at)
        if len(jobs) < 400 and stage.run("SELECT NOT EXISTS (SELECT FROM jobherd.ready)") == [(True,)]:
            jobs.extend(
                row[0]
                for row in stage.run(
                    """SELECT jobherd.enqueue('t:spin', '{"seconds": 0.005}') FROM generate_series(1, 20)"""
                )
            )
        return len(beats) >= 2 and sum(map(len, beats.values())) > 2 * BEATS

    with busy_loops(processor) as loops:
        for fleet in fleets:
            keep_to(processor, fleet)
        stage.wait(have_beaten, lambda: f"{BEATS} beats of each; there are {beats}", limit=180)
        stage.wait_all(jobs, "completed", limit=180)
        assert all(os.sched_getaffinity(pid) == {processor} for pid in loops)
    assert len(beats) == 2, "no supervisor had to register again"
    assert [fleet.workers() | {-1: fleet.maintenance()} for fleet in fleets] == before, "the same processes"
    for fleet in fleets:
        assert not fleet.said(
            lambda event: any(
                words in event.get("message", "") for words in ("the lease was lost", " gets SIG", "killed")
            )
        )
    assert stage.run("SELECT DISTINCT attempts, crashes FROM jobherd.history") == [(1, 0)]
    assert stage.completed_twice() == []
    assert [fleet.stop() for fleet in fleets] == [0, 0]
