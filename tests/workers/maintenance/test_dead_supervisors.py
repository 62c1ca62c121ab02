"""Tests that orphans of a dead supervisor are found by their mark or control block, and that only they are killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.maintenance.dead_supervisors import end, end_groups, find
from jobherd.workers.system import procfs
from jobherd.workers.system.procfs import alive, started
from tests.support.patience import LIMIT
from tests.support.processes import is_running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLEEP = "import time; print('on', flush=True); time.sleep(3600)"
TITLED = "import setproctitle, time; setproctitle.setproctitle('jobherd: worker 1 runs'); print('on', flush=True); time.sleep(3600)"


HERE = procfs.pid_namespace()
APART = HERE + 1
"""PID namespace of all marks here. In the host's own, a supervisor of another test would kill the orphans after 3 s."""


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """Make this process report that namespace as its own."""
    with pytest.MonkeyPatch.context() as patch:  # patches of the test itself end before its programs do
        patch.setattr(procfs, "pid_namespace", lambda: APART)
        yield


class Zoo:
    """Programs in separate sessions, killed at the end of the test."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, program: str = SLEEP, *, mark: str | None = None) -> subprocess.Popen[bytes]:
        environment = None if mark is None else {"JOBHERD_CHILD": mark}
        process = subprocess.Popen(
            [sys.executable, "-c", program], start_new_session=True, env=environment, stdout=subprocess.PIPE
        )
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
    """Return the name of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = f"{process.pid}/{started(process.pid)}/{APART}"
    process.communicate(b"\n")
    return name


def test_children_of_a_dead_supervisor_are_found_by_their_mark_and_others_are_not(zoo: Zoo):
    ours, gone = started(os.getpid()), dead()
    again = f"{os.getpid()}/{ours - 1}/{APART}"  # this process has the reused process id
    elsewhere = f"{gone.rpartition('/')[0]}/{APART + 1}"  # in a container the process ids name other processes
    long = "1" * 5000
    marks = [f"{os.getpid()}/{ours}/{APART}:3", f"{elsewhere}:3", "7", f"{long}/1/1:3", None]
    others = [*(zoo.start(mark=mark) for mark in marks), zoo.start(TITLED)]
    orphans = [zoo.start(mark=f"{gone}:3"), zoo.start(mark=f"{again}:3")]
    found = find()
    assert [found.get(process.pid) for process in orphans] == [gone, again]
    assert not set(found) & {process.pid for process in others}
    assert end({gone}) == [orphans[0].pid]
    assert end({again}) == [orphans[1].pid]
    assert [process.wait(LIMIT) for process in orphans] == [-signal.SIGKILL] * 2
    assert all(is_running(process.pid) for process in others)


def test_supervisor_whose_state_cannot_be_read_counts_as_living(zoo: Zoo, monkeypatch: pytest.MonkeyPatch):
    """This happens if users see only their own processes, or if the system has no file handle left."""
    gone = dead()
    orphan = zoo.start(mark=f"{gone}:3")
    assert orphan.pid in find()
    monkeypatch.setattr("jobherd.workers.system.procfs.read", refuse(OSError(errno.ENFILE, "none left")))
    assert orphan.pid not in find()
    monkeypatch.setattr("jobherd.workers.system.procfs.read", refuse(FileNotFoundError()))
    monkeypatch.setattr("jobherd.workers.system.procfs.os.kill", refuse(PermissionError()))
    assert orphan.pid not in find()
    assert alive(orphan.pid + 2**22, 1)
    monkeypatch.setattr("jobherd.workers.system.procfs.os.kill", refuse(ProcessLookupError()))
    assert not alive(orphan.pid + 2**22, 1)


def refuse(problem: OSError) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        raise problem

    return refused


def test_process_that_an_orphan_starts_while_it_is_killed_is_killed_too(zoo: Zoo, monkeypatch: pytest.MonkeyPatch):
    gone = dead()
    first = zoo.start(mark=f"{gone}:3")
    late: list[subprocess.Popen[bytes]] = []
    kill = os.kill

    def kill_late(pid: int, what: int) -> None:
        if what and not late:
            late.append(zoo.start(mark=f"{gone}:3"))
        kill(pid, what)

    monkeypatch.setattr("jobherd.workers.maintenance.dead_supervisors.os.kill", kill_late)
    assert end({gone}) == sorted((first.pid, late[0].pid))


FORKS = """
import os, setproctitle, sys, time
from jobherd.workers.system import procfs

procfs.pid_namespace = lambda: int(sys.argv[2])
from jobherd.workers.ipc.control_block import ControlBlock

control = ControlBlock()
if os.fork() == 0:
    setproctitle.setproctitle(sys.argv[1])
    print(os.getpid(), flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("title", ["jobherd: worker 1 runs", "what a library calls it"])
def test_forked_process_that_never_called_exec_is_found_by_its_control_block(title: str):
    with subprocess.Popen([sys.executable, "-c", FORKS, title, f"{APART}"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        owner = f"{parent.pid}/{started(parent.pid)}/{APART}"
        before = find()
        parent.kill()
        parent.wait(LIMIT)
        after = find()
        assert end({owner}) == [worker]
        assert worker not in before
        assert after[worker] == owner


def test_control_block_names_the_process_that_made_it():
    assert ControlBlock().owner == f"{os.getpid()}/{started(os.getpid())}/{HERE}"


def test_process_that_left_its_group_is_killed_by_its_mark_and_unrelated_ones_are_not(zoo: Zoo):
    escaped, other, stranger = zoo.start(mark="4711:3"), zoo.start(mark="47110:3"), zoo.start()
    end_groups({stranger.pid}, marks="4711:", seconds=0.0)
    escaped.wait(LIMIT)
    assert is_running(other.pid)
    assert is_running(stranger.pid)


def test_end_groups_returns_at_once_if_no_process_is_left():
    before = time.monotonic()
    end_groups(set(), marks="no such:", seconds=600.0)
    assert time.monotonic() - before < 300
