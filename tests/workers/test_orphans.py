"""What a dead supervisor has left behind is known by its mark, or by the notice in its memory, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.patience import LIMIT
from tests.support.processes import is_running
from workers.notice import Notice
from workers.orphans import end, end_groups, find
from workers.processes import started

if TYPE_CHECKING:
    from collections.abc import Iterator

SLEEP = "import time; print('on', flush=True); time.sleep(3600)"
TITLED = "import setproctitle, time; setproctitle.setproctitle('jobherd: worker 1 runs'); print('on', flush=True); time.sleep(3600)"


class Zoo:
    """Programs in sessions of their own, ended with the test."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, program: str = SLEEP, *, mark: str | None = None) -> subprocess.Popen[bytes]:
        environment = None if mark is None else {"JOBHERD_CHILD": mark}
        process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, env=environment, stdout=subprocess.PIPE)
        self.all.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # before that it may have no environment yet
        return process


@pytest.fixture
def zoo() -> Iterator[Zoo]:
    zoo = Zoo()
    yield zoo
    for process in zoo.all:
        process.kill()
        process.wait(LIMIT)
        process.stdout.close()


def dead() -> str:
    """The name of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = f"{process.pid}/{started(process.pid)}"
    process.communicate(b"\n")
    return name


def test_what_a_dead_supervisor_started_is_found_by_its_mark_and_that_of_a_living_one_is_not(zoo: Zoo):
    ours = started(os.getpid())
    orphan = zoo.start(mark=f"{dead()}:3")
    again = zoo.start(mark=f"{os.getpid()}/{ours - 1}:3")  # its supervisor's number was given to us
    others = [zoo.start(mark=f"{os.getpid()}/{ours}:3"), zoo.start(), zoo.start(mark="7"), zoo.start(TITLED)]
    found = find()
    assert {orphan.pid, again.pid} <= set(found)
    assert not set(found) & {process.pid for process in others}
    assert sorted(end({pid: found[pid] for pid in (orphan.pid, again.pid)})) == sorted((orphan.pid, again.pid))
    assert orphan.wait(LIMIT) == again.wait(LIMIT) == -signal.SIGKILL
    assert all(is_running(process.pid) for process in others)


FORKS = """
import os, setproctitle, time
from workers.notice import Notice

notice = Notice()
if os.fork() == 0:
    setproctitle.setproctitle("jobherd: worker 1 runs")
    print(os.getpid(), flush=True)
time.sleep(3600)
"""


def test_what_was_forked_and_began_no_program_is_found_by_its_notice():
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        before = find()
        parent.kill()
        parent.wait(LIMIT)
        after = find()
        assert end({worker: after.get(worker, started(worker))}) == [worker]
        assert worker not in before
        assert worker in after


def test_a_number_that_was_given_again_is_not_ended(zoo: Zoo):
    process = zoo.start()
    assert end({process.pid: started(process.pid) - 1, 2**22 + 1: 1}) == []
    assert is_running(process.pid)


def test_the_notice_names_who_made_it():
    assert Notice().owner == f"{os.getpid()}/{started(os.getpid())}"


def test_what_escaped_from_its_group_is_known_by_its_mark_and_strangers_are_left_alone(zoo: Zoo):
    escaped, other, stranger = zoo.start(mark="4711:3"), zoo.start(mark="47110:3"), zoo.start()
    assert end_groups({stranger.pid}, marks="4711:", seconds=0.0) == [escaped.pid]
    escaped.wait(LIMIT)
    assert is_running(other.pid)
    assert is_running(stranger.pid)


def test_nothing_left_is_not_waited_for():
    before = time.monotonic()
    assert end_groups(set(), marks="no such:", seconds=600.0) == []
    assert time.monotonic() - before < 300
