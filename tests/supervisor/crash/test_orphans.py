"""What belongs to no slot: ours is ended, strangers are let live."""

from __future__ import annotations

import errno
import io
import os
import subprocess

import pytest

from jobherd.supervisor.crash.orphans import MARK, Orphans
from jobherd.supervisor.process.name_lookup import NameLookup

MARKED = {MARK.decode().rstrip("="): "1/1:1", "PATH": os.environ["PATH"]}


def test_the_number_of_a_stranger_that_is_gone_may_be_ours():
    stranger = subprocess.Popen(["sleep", "60"])
    strays = Orphans()
    stranger.kill()
    stranger.wait()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=MARKED) as marked:
        marked.stdin.write(b"are you there?\n")
        marked.stdout.readline()  # before that it may have no environment yet
        assert marked.pid in strays.end()
    assert stranger.pid not in strays._strangers, (
        "or the set would grow for ever, and shield who is given the number next"
    )


def test_a_process_that_begins_a_program_this_instant_is_looked_at_again(monkeypatch: pytest.MonkeyPatch):
    strays = Orphans()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=MARKED) as marked:
        marked.stdin.write(b"are you there?\n")
        marked.stdout.readline()
        with monkeypatch.context() as early:
            early.setattr(
                "jobherd.workers.system.procfs.open", lambda *_: io.BytesIO(), raising=False
            )  # what the kernel gives until it is set up
            early.setattr("jobherd.workers.system.procfs.own_children", lambda: {marked.pid})
            assert strays.end() == []
        assert marked.pid in strays.end(), "taken for a stranger, it would be let live for ever"


@pytest.mark.parametrize("others", [True, False], ids=["beside children of others", "alone"])
def test_what_names_nobody_is_ended_only_where_no_stranger_can_become_our_child(
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


def test_process_1_of_a_container_inherits_strangers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobherd.workers.system.procfs.own_children", set)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert not Orphans()._alone


def test_a_refused_look_up_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> int:
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr(os, "fork", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no process"):
        NameLookup(["localhost"])
    assert os.listdir("/proc/self/fd") == before
