"""Short forms of `python -m tests.faults.stress`.

What must hold after ten thousand forks must hold after a hundred.

These tests measure no time: on a shared machine, a late turn shows nothing about the supervisor's loop.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.support.fleet import is_foreign
from tests.support.processes import children_of
from tests.system.test_hygiene import files, held

if TYPE_CHECKING:
    from tests.support.fleet import Fleet, Stage

INTERRUPTED = """
import signal, time
from jobherd import handler

signal.signal(signal.SIGURG, lambda *_: None)  # without a handler, the signal would interrupt no call
signal.siginterrupt(signal.SIGURG, True)

@handler("t:brief")
def brief() -> None:
    time.sleep(0.005)
"""
QUICK = {"respawn_initial": "10ms", "respawn_max": "100ms"}


def at_rest(stage: Stage, fleet: Fleet, descriptors: int, children: int) -> None:
    """Wait until as many child processes live as before, and the supervisor has closed all files of the others."""
    stage.wait(
        lambda: (
            fleet.signal(signal.SIGUSR1)
            or (len(files(fleet.pid)) == descriptors and len(children_of(fleet.pid)) == children)
        ),
        lambda: (
            f"{descriptors} files and {children} children; there are {len(files(fleet.pid))} and {children_of(fleet.pid)}"
        ),
        limit=60,
    )


def wait_heard(fleet: Fleet) -> None:
    """Return once every signal that was sent before is handled.

    An earlier SIGUSR1 may still be unanswered. Of two pending signals, the lower number is handled first, so
    that the next SIGUSR1 may be answered before an earlier SIGTTOU is handled. The third comes after both.
    """
    for _ in range(3):
        mark = len(fleet.log)
        fleet.signal(signal.SIGUSR1)
        fleet.wait_log("serving, supervisor", after=mark, limit=60)


def test_sixty_child_processes_killed_at_random_moments_leave_nothing_behind(stage: Stage):
    fleet = stage.run_fleet(workers=2, **QUICK)
    descriptors = held(fleet.pid)
    dice = random.Random(5)
    jobs = [stage.enqueue("t:noop") for _ in range(20)]
    seen: set[int] = set()
    while len(seen) < 60:
        for pid in children_of(fleet.pid):
            seen.add(pid)
            with suppress(ProcessLookupError):  # it was dying already
                os.kill(pid, dice.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)))
        stage.wait(lambda: set(children_of(fleet.pid)) - seen, "a new child process", limit=60)
    stage.wait_all(jobs, "completed", "failed", limit=60)
    at_rest(stage, fleet, descriptors, 3)
    assert len(os.listdir(f"/proc/{fleet.pid}/task")) == 1
    assert stage.completed_twice() == []
    assert fleet.stop() == 0


def test_supervisor_without_file_descriptors_waits_and_then_replaces_its_worker(stage: Stage):
    """Each pipe for a new worker is rejected repeatedly.

    Live workers continue, and the missing one starts once file descriptors are available.
    """
    fleet = stage.run_fleet(workers=2, **QUICK)
    descriptors = held(fleet.pid)
    for _ in range(3):
        old = resource.prlimit(
            fleet.pid, resource.RLIMIT_NOFILE, (3, resource.prlimit(fleet.pid, resource.RLIMIT_NOFILE)[1])
        )
        mark = len(fleet.log)
        os.kill(fleet.workers()[0], signal.SIGKILL)
        fleet.wait_log("the system rejects another process: Too many open files", count=3, after=mark, limit=60)
        stage.wait_state(stage.enqueue("t:noop"), "completed", limit=60)
        resource.prlimit(fleet.pid, resource.RLIMIT_NOFILE, old)
        fleet.wait_ready(1, after=mark, limit=60)
    at_rest(stage, fleet, descriptors, 3)
    assert fleet.stop() == 0


def test_hundreds_of_random_signals_leave_the_supervisor_as_it_was(stage: Stage):
    fleet = stage.run_fleet(workers=2, max_workers=4, **QUICK)
    descriptors = held(fleet.pid)
    dice = random.Random(7)
    for _ in range(3):
        for _ in range(300):
            os.kill(fleet.pid, dice.choice((signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGCHLD)))
        fleet.signal(signal.SIGHUP)
        fleet.signal(signal.SIGTTIN)  # the signals may have removed every worker
        stage.wait_state(stage.enqueue("t:noop"), "completed", limit=60)
    wait_heard(fleet)  # a late answer to these signals must not count as an answer to the next one
    stage.wait(
        lambda: len(children_of(fleet.pid)) == 1 or fleet.signal(signal.SIGTTOU),
        "only the maintenance process",
        limit=60,
    )
    wait_heard(fleet)
    for wanted in (1, 2):
        mark = len(fleet.log)
        fleet.signal(signal.SIGTTIN)
        fleet.wait_log(f"workers wanted: {wanted}", after=mark, limit=60)
    at_rest(stage, fleet, descriptors, 3)
    assert fleet.stop() == 0


def test_signals_that_interrupt_every_wait_disturb_no_process_and_no_job(stage: Stage):
    """Supervisor, workers and maintenance process get as many signals as a 1 ms timer sends.

    Meanwhile jobs run, wait, or are due later.
    """
    fleet = stage.run_fleet(workers=2, handlers=stage.write("interrupted.py", INTERRUPTED), **QUICK)
    family = [fleet.pid, *children_of(fleet.pid)]
    mark, dice, sent = len(fleet.log), random.Random(3), 0
    jobs = [stage.enqueue("t:brief", delay=delay) for delay in (None, 0.5) for _ in range(100)]
    for _ in range(3000):
        os.kill(dice.choice(family), dice.choice((signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG)))
        sent += 1
        if sent % 10 == 0:
            stage.run("SELECT")  # a round trip: a pause of about 1 ms
    stage.wait_all(jobs, "completed", limit=60)
    assert [fleet.pid, *children_of(fleet.pid)] == family
    assert stage.run("SELECT DISTINCT attempts FROM jobherd.history") == [(1,)]
    assert fleet.said(lambda event: not is_foreign(event), after=mark) == []
    assert fleet.stop() == 0
