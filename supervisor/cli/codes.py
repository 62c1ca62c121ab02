"""Defines the exit codes of all commands, and the error that has one."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """All exit codes. Scripts rely on these numbers."""

    DONE = 0
    """The command did what was requested."""
    WRONG = 1
    """Something is wrong: a job failed, an ID does not exist, a handler does not load."""
    USAGE = 2
    """The command line is invalid; nothing was done."""
    NO_DATABASE = 69
    """The database does not answer, or none was found."""
    CONFIGURATION = 78
    """Settings, schema or handlers are wrong; running the command again does not help."""
    TIMEOUT = 124
    """The time limit for waiting has passed."""
    INTERRUPTED = 130
    """Ctrl-C."""
    BROKEN_PIPE = 141
    """The reader of the output is gone."""


class CommandError(Exception):
    """A command cannot continue. The text is for people: what is wrong, then what to do."""

    def __init__(self, text: str, code: ExitCode = ExitCode.WRONG) -> None:
        super().__init__(text)
        self.code = code
