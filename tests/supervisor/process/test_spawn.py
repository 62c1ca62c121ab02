"""What forking leaves behind in the parent."""

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
    """One half of a circle that only the collector can open."""


@pytest.fixture
def usual_collector():
    """As a supervisor has it; what checks types in this process has it collect a hundred times more seldom."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_who_is_dismissed_while_a_name_is_looked_up_hears_of_it(monkeypatch):
    """By the end of its pipe.

    Another process that holds it open keeps that from it, for as long as a name server is silent.
    """
    monkeypatch.setattr(name_lookup, "PATIENCE", 2 * LIMIT)
    monkeypatch.setattr(name_lookup, "_look_up", lambda _host, _write: signal.pause())
    reading, writing = os.pipe()
    lookup = name_lookup.NameLookup(["a"])
    os.close(writing)
    try:
        assert select.select([reading], [], [], LIMIT)[0]
        assert lookup.read() is None, "it is still looked up"
    finally:
        lookup.close()
        os.waitpid(lookup.pid, 0)
        os.close(reading)


@pytest.mark.usefixtures("usual_collector")
def test_garbage_between_forks_does_not_pile_up():
    ends = []
    for _ in range(100):
        for _ in range(20):
            one, other = Link(), Link()
            one.other, other.one = other, one
            ends.append(weakref.ref(one))
        os.waitpid(spawn.fork(lambda: os._exit(0)), 0)
    assert gc.isenabled()
    assert sum(end() is not None for end in ends) < len(ends) / 2


def test_the_childs_collector_leaves_alone_what_its_parent_had():
    before = gc.get_freeze_count()  # the suite's own heap is frozen already
    young = [[number] for number in range(2000)]
    status = os.waitpid(spawn.fork(lambda: os._exit(gc.get_freeze_count() >= before + len(young))), 0)[1]
    assert os.waitstatus_to_exitcode(status) == 1
    assert gc.get_freeze_count() == before
