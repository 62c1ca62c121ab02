"""What a fork leaves open in the supervisor, and how it treats garbage collection."""

from __future__ import annotations

import gc
import os
import select
import signal
import weakref

import pytest

from jobherd.supervisor.process import name_lookup, spawn
from tests.support.patience import LIMIT


class Link:
    """Half of a reference cycle that only the garbage collector can free."""


@pytest.fixture
def usual_collector():
    """Collector thresholds as in a supervisor: the type checker in this process makes collections 100 times rarer."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_name_lookup_does_not_keep_the_pipes_of_children_open(monkeypatch):
    """A dismissed child reads the end of its wake pipe.

    If the lookup process keeps the pipe open, the child notices nothing while a name server does not answer.
    """
    monkeypatch.setattr(name_lookup, "PATIENCE", 2 * LIMIT)
    monkeypatch.setattr(name_lookup, "_look_up", lambda _host, _write: signal.pause())
    reading, writing = os.pipe()
    lookup = name_lookup.NameLookup(["a"])
    os.close(writing)
    try:
        assert select.select([reading], [], [], LIMIT)[0]
        assert lookup.read() is None, "the lookup must still be running"
    finally:
        lookup.close()
        os.waitpid(lookup.pid, 0)
        os.close(reading)


@pytest.mark.usefixtures("usual_collector")
def test_garbage_is_collected_between_forks():
    ends = []
    for _ in range(100):
        for _ in range(20):
            one, other = Link(), Link()
            one.other, other.one = other, one
            ends.append(weakref.ref(one))
        os.waitpid(spawn.fork(lambda: os._exit(0)), 0)
    assert gc.isenabled()
    assert sum(end() is not None for end in ends) < len(ends) / 2


def test_fork_freezes_the_parents_objects_in_the_child_only():
    before = gc.get_freeze_count()  # the tests have frozen their own heap already
    young = [[number] for number in range(2000)]
    status = os.waitpid(spawn.fork(lambda: os._exit(gc.get_freeze_count() >= before + len(young))), 0)[1]
    assert os.waitstatus_to_exitcode(status) == 1
    assert gc.get_freeze_count() == before
