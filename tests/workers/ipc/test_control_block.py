"""The facts that the supervisor publishes to its child processes can be read, whatever they contain."""

from __future__ import annotations

import os

from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.memory_barrier import barrier_of


def test_facts_over_the_size_limit_lose_the_end_of_the_longest_fact_and_stay_readable():
    control = ControlBlock()
    kinds = [f"{number:03}:" + "k" * 200 for number in range(250)]
    errors = {kind: {"WORKER_CRASHED": number} for number, kind in enumerate(kinds)}
    settled = {kind: {"retry": 1} for kind in kinds[:100]}
    control.publish({"pid": 7, "settled": settled, "errors": errors, "version": "1"})
    found = control.facts()
    assert (found["pid"], found["version"], found["settled"]) == (7, "1", settled)
    assert 100 < len(found["errors"]) < 250
    assert list(found["errors"].items()) == list(errors.items())[: len(found["errors"])], "the first entries are kept"
    control.publish({"pid": 8, "errors": {"one": "x" * 100_000}, "text": "y" * 100_000})
    assert (control.facts()["pid"], control.facts()["errors"]) == (8, None)
    assert set(control.facts()["text"]) == {"y"}


def test_facts_within_the_size_limit_are_published_unchanged():
    control = ControlBlock()
    assert control.facts() == {}
    control.publish({"children": [{"slot": 1}], "none": None})
    assert control.facts() == {"children": [{"slot": 1}], "none": None}


def test_scheduler_is_the_memory_barrier_on_processors_where_a_lock_is_not_one():
    """No such processor is available here, so the test checks only which barrier is chosen."""
    barrier_of("aarch64")()
    barrier_of("x86_64")()
    assert barrier_of("aarch64") is os.sched_yield
    assert barrier_of("x86_64") is not os.sched_yield, "sched_yield costs three times as much"
