"""What the exit code of a command says, and the error that carries one."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes, all of them. Scripts rely on these numbers."""

    DONE = 0
    """What was asked for is done."""
    WRONG = 1
    """It was found wrong: a job failed, an id does not exist, a handler does not load."""
    USAGE = 2
    """The command was not understood; nothing was done."""
    NO_DATABASE = 69
    """The database does not answer, or there is none."""
    CONFIGURATION = 78
    """Settings, schema or handlers do not fit; trying again does not help."""
    TIMEOUT = 124
    """The time given to wait was up."""
    INTERRUPTED = 130
    """Ctrl-C."""
    BROKEN_PIPE = 141
    """Whoever read our output has gone."""


class CommandError(Exception):
    """A command cannot go on. The text is for people: what is wrong, then the remedy."""

    def __init__(self, text: str, code: ExitCode = ExitCode.WRONG) -> None:
        super().__init__(text)
        self.code = code
