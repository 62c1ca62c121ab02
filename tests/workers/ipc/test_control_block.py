"""What the parent tells all its children of the fleet: whatever it is, it can be read."""

from __future__ import annotations

import os

from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.record import barrier_of


def test_facts_that_do_not_fit_lose_the_end_of_what_is_longest_and_stay_readable():
    control = ControlBlock()
    kinds = [f"{number:03}:" + "k" * 200 for number in range(250)]
    errors = {kind: {"WORKER_CRASHED": number} for number, kind in enumerate(kinds)}
    settled = {kind: {"retry": 1} for kind in kinds[:100]}
    control.publish({"pid": 7, "settled": settled, "errors": errors, "version": "1"})
    found = control.facts()
    assert (found["pid"], found["version"], found["settled"]) == (7, "1", settled)
    assert 100 < len(found["errors"]) < 250
    assert list(found["errors"].items()) == list(errors.items())[: len(found["errors"])], "what stands first stays"
    control.publish({"pid": 8, "errors": {"one": "x" * 100_000}, "text": "y" * 100_000})
    assert (control.facts()["pid"], control.facts()["errors"]) == (8, None)
    assert set(control.facts()["text"]) == {"y"}


def test_facts_that_fit_are_told_as_they_are():
    control = ControlBlock()
    assert control.facts() == {}
    control.publish({"children": [{"slot": 1}], "none": None})
    assert control.facts() == {"children": [{"slot": 1}], "none": None}


def test_stores_and_loads_are_kept_in_order_on_processors_that_a_lock_does_not_bind():
    """No such processor is at hand here: that it is asked for is all that can be seen."""
    barrier_of("aarch64")()
    barrier_of("x86_64")()
    assert barrier_of("aarch64") is os.sched_yield
    assert barrier_of("x86_64") is not os.sched_yield, "it costs three times as much"
