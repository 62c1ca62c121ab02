"""Whose memory is looked at, when it is asked where it stands, and what is made of the answer."""

from __future__ import annotations

import os
import signal

import pytest

from jobherd.supervisor.crash import memory_growth
from jobherd.supervisor.crash.memory_growth import LEAST, MemoryGrowth
from jobherd.supervisor.crash.postmortem import examine
from jobherd.supervisor.policy.child_exit import Death, Exit
from jobherd.supervisor.policy.fleet import Fleet
from jobherd.supervisor.policy.limits import Limits
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.system import procfs

MIB = 2**20
ASKED = b'Current thread 0x1 (most recent call first):\n  File "/srv/app/resize.py", line 41 in shrink\n'


def runs(job: int) -> CurrentWork:
    return CurrentWork(Phase.RUNNING, 1, 9, job, 1, 1, 5, 0, started=100.0, deadline=160.0)


class Place:
    """A child whose size is what the test says, and which answers at once."""

    def __init__(self, monkeypatch) -> None:
        self.slot = Fleet(Limits(workers=1)).slots[0]
        self.slot.process.pid, self.slot.process.incarnation = 77, 1
        self.board = StatusBoard("test")
        self.open_questions: set[int] = set()
        self.growth = MemoryGrowth(self)
        self.asked = 0
        self.rss = 0
        monkeypatch.setattr(procfs, "rss", lambda pid: self.rss)
        monkeypatch.setattr(memory_growth, "ask_stacks", self.answer)

    def asks(self, number: int) -> bool:
        return number in self.open_questions

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
        """Return how often it has been asked by now."""
        self.rss = mib * MIB
        self.growth.look(self.slot, self.board, runs(job), now)
        return self.asked


@pytest.fixture
def place(monkeypatch):
    found = Place(monkeypatch)
    yield found
    found.board.close()


def test_a_job_is_asked_once_for_each_quarter_that_it_grows_by(place):
    least = LEAST // MIB
    place.begin(400)
    assert place.look(400) == 0
    assert place.look(400 + least) == 0, "much, and not a quarter"
    assert place.look(500) == 1
    assert place.look(600) == 1
    assert place.look(625, now=104.0) == 2
    seen = place.growth.seen(place.slot, place.board, runs(5))
    assert seen is not None
    assert (seen.at, seen.rss, seen.stacks) == (104.0, 625 * MIB, ASKED)


def test_a_small_process_is_not_asked_whatever_it_grows_by(place):
    place.begin(20)
    assert place.look(20 + LEAST // MIB - 1) == 0, "four times its size, and still little"
    assert place.look(20 + LEAST // MIB) == 1


def test_what_a_job_has_grown_by_before_its_first_look_counts(place):
    place.begin(100)
    assert place.look(900, job=5) == 1
    assert place.look(100, job=6) == 1
    assert place.look(900, job=7) == 2, "its predecessor had left it at 100"
    assert place.look(100, job=8) == 2
    assert place.look(900, job=8) == 3, "reckoned from where it was first seen"


def test_nothing_is_said_of_a_job_by_what_another_was_seen_at(place):
    place.begin(100)
    place.look(900, job=5)
    place.look(900, job=6)
    assert place.asked == 1
    assert place.growth.seen(place.slot, place.board, runs(6)) is None
    assert place.growth.seen(place.slot, place.board, runs(5)) is None, "told once"


def test_nothing_is_said_of_a_child_by_what_its_predecessor_was_seen_at(place):
    place.begin(100)
    place.look(900)
    place.slot.process.incarnation = 2
    assert place.growth.seen(place.slot, place.board, runs(5)) is None


def test_a_child_that_was_never_ready_is_not_looked_at(place):
    assert place.look(900) == 0


def test_who_is_being_asked_by_somebody_else_is_left_alone(place):
    place.open_questions.add(place.slot.number)
    place.begin(100)
    assert place.look(900) == 0, "its answer is for them"
    place.open_questions.clear()
    assert place.look(900) == 1, "as soon as they are through"


def test_the_kernels_victim_is_said_to_have_stood_where_it_was_seen(place):
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


def test_a_crash_that_wrote_its_own_stack_needs_no_older_one(place):
    place.begin(400)
    place.look(1750)
    death = Death(0, "worker 0", 77, 1, 1, Exit(None, signal.SIGSEGV), "signal", True, None, 103.9, 60.0)
    report = examine(
        death, place.board, runs(5), "image:resize", grown=place.growth.seen(place.slot, place.board, runs(5))
    )
    assert report.sentence == "Process 77 died of SIGSEGV while it ran image:resize #5."
    assert not report.stack
