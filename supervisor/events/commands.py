"""Carries out the fleet commands that were taken from the database, and answers each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from jobherd.supervisor.database.fleet_commands import CommandRejected, FleetCommand

if TYPE_CHECKING:
    from jobherd.supervisor.database.fleet_commands import FleetCommands

log = logging.getLogger("jobherd.supervisor")

Action: TypeAlias = Callable[[FleetCommand, float], Mapping[str, Any] | None]
"""Carries out a command at a given time. Returns the answer, or None if `FleetCommands.answer` is
called later. Raises CommandRejected."""


class CommandRunner:
    """Carries out each command by the action of its name."""

    def __init__(self, commands: FleetCommands, actions: Mapping[str, Action]) -> None:
        self._commands = commands
        self._actions = actions

    def wake_at(self, now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._commands.wake_at(now)

    def step(self, now: float) -> None:
        """Carry out taken commands, then send answers and take more."""
        for command in self._commands.taken():
            self._carry_out(command, now)
        self._commands.step(now)

    def _carry_out(self, command: FleetCommand, now: float) -> None:
        ids = {"order": command.id, "arguments": dict(command.arguments)}
        if command.name != "report":
            log.info("fleet command %s by %s", command.name, command.asked_by, extra=ids)
        action = self._actions.get(command.name)
        try:
            if action is None:
                known = ", ".join(sorted(self._actions))
                raise CommandRejected(f"it does not have the fleet command {command.name!r}, only {known}")
            reply = action(command, now)
        except CommandRejected as problem:
            self._commands.answer(command.id, error=str(problem))
        except Exception as problem:  # a fleet command must not be able to crash the supervisor
            log.exception("the fleet command %r failed", command.name, extra=ids)
            self._commands.answer(command.id, error=f"it failed: {type(problem).__name__}: {problem}")
        else:
            if reply is not None:
                self._commands.answer(command.id, reply)
