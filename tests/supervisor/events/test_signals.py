"""What signals do, and the fleet commands with the same effect."""

from __future__ import annotations

import time

import pytest

from jobherd.supervisor.database.fleet_commands import CommandRejected, FleetCommand
from jobherd.supervisor.policy.run_state import RunState


def test_second_drain_command_is_ignored(supervisor):
    """A second SIGTERM releases running jobs, but a second click on Drain in the dashboard must not."""
    now = time.monotonic()
    order = FleetCommand(1, "drain", {}, "anna")
    assert supervisor.signals.carry_out(order, now) == {"workers": 4, "running": 0}
    assert supervisor.signals.carry_out(order, now + 60) == {"workers": 4, "running": 0}
    assert supervisor.slot_table.run_state is RunState.DRAINING
    with pytest.raises(CommandRejected, match="exiting already"):
        supervisor.signals.carry_out(FleetCommand(2, "add", {}, "anna"), now + 60)


def test_fleet_commands_add_remove_and_reload_act_like_their_signals(supervisor):
    now = time.monotonic()
    assert [
        supervisor.signals.carry_out(FleetCommand(1, name, {}, "anna"), now)["workers"]
        for name in ("add", "add", "remove")
    ] == [5, 6, 5]
    generation = supervisor.slot_table.generation
    supervisor.settings._reload = lambda: (_ for _ in ()).throw(ValueError("bad"))
    assert supervisor.signals.carry_out(FleetCommand(1, "reload", {}, "anna"), now) is None, (
        "the command is answered later, when a worker has loaded the code or failed to"
    )
    assert supervisor.reload_answers._waiting == [(1, "reload failed; keeping the current settings: bad")]
    assert supervisor.slot_table.generation == generation + 1
