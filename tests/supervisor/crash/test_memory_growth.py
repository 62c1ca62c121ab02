"""When a growing child process is asked for its stacks, and how a post-mortem uses the answer."""

from __future__ import annotations

import os
import signal

import pytest

from jobherd.supervisor.crash import memory_growth
from jobherd.supervisor.crash.memory_growth import LEAST, MemoryGrowth
from jobherd.supervisor.crash.postmortem import examine
from jobherd.supervisor.policy.child_exit import Death, Exit
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.system import procfs

MIB = 2**20
ASKED = b'Current thread 0x1 (most recent call first):\n  File "/srv/app/resize.py", line 41 in shrink\n'


def runs(job: int) -> CurrentWork:
    return CurrentWork(Phase.RUNNING, 1, 9, job, 1, 1, 5, 0, started=100.0, deadline=160.0)


class Place:
    """A child process whose size the test sets and which answers at once."""

    def __init__(self, monkeypatch) -> None:
        self.slot = SlotTable(Limits(workers=1)).slots[0]
        self.slot.process.pid, self.slot.process.incarnation = 77, 1
        self.board = StatusBoard("test")
        self.open_requests: set[int] = set()
        self.growth = MemoryGrowth(self)
        self.asked = 0
        self.rss = 0
        monkeypatch.setattr(procfs, "rss", lambda pid: self.rss)
        monkeypatch.setattr(memory_growth, "signal_for_stacks", self.answer)

    def has_open_request(self, number: int) -> bool:
        return number in self.open_requests

    def answer(self, pid, board) -> bool:
        assert pid == 77
        board.open_stacks()
        os.write(board.fd, ASKED)
        self.asked += 1
        return True

    def begin(self, mib: int) -> None:
        self.rss = mib * MIB
        self.growth.begin(self.slot)

    def look(self, mib: int, *, job: int = 5, now: float = 101.0) -> int:
        """Check the child's growth; return how often it was asked for its stacks so far."""
        self.rss = mib * MIB
        self.growth.look(self.slot, self.board, runs(job), now)
        return self.asked


@pytest.fixture
def place(monkeypatch):
    found = Place(monkeypatch)
    yield found
    found.board.close()


def test_stacks_are_requested_each_time_the_process_has_grown_by_a_quarter(place):
    least = LEAST // MIB
    place.begin(400)
    assert place.look(400) == 0
    assert place.look(400 + least) == 0, "grown by 64 MiB, but by less than a quarter"
    assert place.look(500) == 1
    assert place.look(600) == 1
    assert place.look(625, now=104.0) == 2
    seen = place.growth.seen(place.slot, place.board, runs(5))
    assert seen is not None
    assert (seen.at, seen.rss, seen.stacks) == (104.0, 625 * MIB, ASKED)


def test_stacks_are_not_requested_until_a_small_process_has_grown_by_64_mib(place):
    place.begin(20)
    assert place.look(20 + LEAST // MIB - 1) == 0, "four times its size, but grown by less than 64 MiB"
    assert place.look(20 + LEAST // MIB) == 1


def test_growth_before_the_first_check_of_a_job_counts(place):
    place.begin(100)
    assert place.look(900, job=5) == 1
    assert place.look(100, job=6) == 1
    assert place.look(900, job=7) == 2, "the job before it ended at 100 MiB"
    assert place.look(100, job=8) == 2
    assert place.look(900, job=8) == 3, "growth counts from the job's first check"


def test_stacks_of_one_job_are_not_reported_for_another_job(place):
    place.begin(100)
    place.look(900, job=5)
    place.look(900, job=6)
    assert place.asked == 1
    assert place.growth.seen(place.slot, place.board, runs(6)) is None
    assert place.growth.seen(place.slot, place.board, runs(5)) is None, "the observation is returned only once"


def test_stacks_of_a_child_are_not_reported_for_its_replacement(place):
    place.begin(100)
    place.look(900)
    place.slot.process.incarnation = 2
    assert place.growth.seen(place.slot, place.board, runs(5)) is None


def test_child_that_was_never_ready_is_not_checked(place):
    assert place.look(900) == 0


def test_no_stacks_are_requested_while_another_stack_request_is_open(place):
    place.open_requests.add(place.slot.number)
    place.begin(100)
    assert place.look(900) == 0, "the answer belongs to the other request"
    place.open_requests.clear()
    assert place.look(900) == 1, "asked as soon as the other request has finished"


def test_post_mortem_of_an_oom_kill_names_the_last_observed_stack(place):
    place.begin(400)
    place.look(1750, now=103.5)
    exit_ = Exit(None, signal.SIGKILL, rss=1946 * MIB, oom=True)
    death = Death(0, "worker 0", 77, 1, 1, exit_, "oom", True, None, 103.9, 60.0)
    report = examine(
        death, place.board, runs(5), "image:resize", grown=place.growth.seen(place.slot, place.board, runs(5))
    )
    assert report.sentence == (
        "The out-of-memory killer killed process 77 at 1946 MiB while it ran image:resize #5."
        " 400 ms before, at 1750 MiB, it was executing shrink at /srv/app/resize.py:41."
    )
    assert report.stack.startswith(
        "400 ms before, at 1750 MiB, it was executing:\n\nmain thread (most recent call last):\n"
    )
    assert report.stack.endswith('File "/srv/app/resize.py", line 41, in shrink')


def test_post_mortem_of_a_segmentation_fault_omits_an_older_stack(place):
    place.begin(400)
    place.look(1750)
    death = Death(0, "worker 0", 77, 1, 1, Exit(None, signal.SIGSEGV), "signal", True, None, 103.9, 60.0)
    report = examine(
        death, place.board, runs(5), "image:resize", grown=place.growth.seen(place.slot, place.board, runs(5))
    )
    assert report.sentence == "Process 77 died of SIGSEGV while it ran image:resize #5."
    assert not report.stack
