"""What belongs to no slot: ours is ended, strangers are let live."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from supervisor import spawn
from supervisor.strays import MARK, Strays


def test_the_number_of_a_stranger_that_is_gone_may_be_ours():
    stranger = subprocess.Popen(["sleep", "60"])
    strays = Strays()
    stranger.kill()
    stranger.wait()
    marked = subprocess.Popen(["sleep", "60"], env={MARK.decode().rstrip("="): "1/1:1", "PATH": os.environ["PATH"]})
    assert marked.pid in strays.end(known=set())
    marked.wait()
    assert stranger.pid not in strays._strangers, "or the set would grow for ever, and shield who is given the number next"


def test_a_refused_look_up_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> int:
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr(os, "fork", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no process"):
        spawn.Lookup(["localhost"])
    assert os.listdir("/proc/self/fd") == before
