"""The supervisor kills orphans of its dead children and spares unrelated processes."""

from __future__ import annotations

import errno
import io
import os
import subprocess

import pytest

from jobherd.supervisor.crash.orphans import MARK, Orphans
from jobherd.supervisor.process.name_lookup import NameLookup

MARKED = {MARK.decode().rstrip("="): "1/1:1", "PATH": os.environ["PATH"]}


def test_pid_of_an_unrelated_process_is_forgotten_when_it_exits():
    stranger = subprocess.Popen(["sleep", "60"])
    strays = Orphans()
    stranger.kill()
    stranger.wait()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=MARKED) as marked:
        marked.stdin.write(b"are you there?\n")
        marked.stdout.readline()  # before it answers, its environment may not be set up
        assert marked.pid in strays.end()
    assert stranger.pid not in strays._strangers, (
        "otherwise the set grows without limit and spares the next process with that pid"
    )


def test_process_that_is_just_starting_a_program_is_checked_again(monkeypatch: pytest.MonkeyPatch):
    strays = Orphans()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=MARKED) as marked:
        marked.stdin.write(b"are you there?\n")
        marked.stdout.readline()
        with monkeypatch.context() as early:
            early.setattr(
                "jobherd.workers.system.procfs.open", lambda *_: io.BytesIO(), raising=False
            )  # the kernel returns this until the program is set up
            early.setattr("jobherd.workers.system.procfs.own_children", lambda: {marked.pid})
            assert strays.end() == []
        assert marked.pid in strays.end(), "classified as unrelated, the orphan would never be killed"


@pytest.mark.parametrize("others", [True, False], ids=["with unrelated children", "without unrelated children"])
def test_unmarked_orphan_is_killed_only_if_no_unrelated_process_can_be_inherited(
    monkeypatch: pytest.MonkeyPatch, *, others: bool
):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={}) as nameless:
        nameless.stdin.write(b"are you there?\n")
        nameless.stdout.readline()
        with monkeypatch.context() as start:
            start.setattr("jobherd.workers.system.procfs.own_children", lambda: {1} if others else set())
            strays = Orphans()
        with monkeypatch.context() as later:
            later.setattr("jobherd.workers.system.procfs.own_children", lambda: {nameless.pid})
            assert strays.end() == ([] if others else [nameless.pid])


def test_supervisor_as_process_1_expects_unrelated_orphans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobherd.workers.system.procfs.own_children", set)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert not Orphans()._alone


def test_name_lookup_that_cannot_fork_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> int:
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr(os, "fork", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no process"):
        NameLookup(["localhost"])
    assert os.listdir("/proc/self/fd") == before
