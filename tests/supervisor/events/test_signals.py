"""What signals do, and the fleet commands that stand for one."""

from __future__ import annotations

import time

import pytest

from jobherd.supervisor.database.fleet_commands import CommandRejected, FleetCommand
from jobherd.supervisor.policy.run_state import RunState


def test_to_drain_twice_is_to_drain(supervisor):
    """A second TERM hands back what runs; somebody on another page who presses the button too does not mean that."""
    now = time.monotonic()
    order = FleetCommand(1, "drain", {}, "anna")
    assert supervisor.signals.carry_out(order, now) == {"workers": 4, "running": 0}
    assert supervisor.signals.carry_out(order, now + 60) == {"workers": 4, "running": 0}
    assert supervisor.fleet.run_state is RunState.DRAINING
    with pytest.raises(CommandRejected, match="leaving already"):
        supervisor.signals.carry_out(FleetCommand(2, "add", {}, "anna"), now + 60)


def test_orders_do_what_the_signals_of_the_same_meaning_do(supervisor):
    now = time.monotonic()
    assert [
        supervisor.signals.carry_out(FleetCommand(1, name, {}, "anna"), now)["workers"]
        for name in ("add", "add", "remove")
    ] == [5, 6, 5]
    generation = supervisor.fleet.generation
    supervisor.settings._reload = lambda: (_ for _ in ()).throw(ValueError("bad"))
    assert supervisor.signals.carry_out(FleetCommand(1, "reload", {}, "anna"), now) is None, (
        "answered once a worker has loaded the code, or could not"
    )
    assert supervisor.reload_answers._waiting == [(1, "reload failed; keeping the current settings: bad")]
    assert supervisor.fleet.generation == generation + 1
