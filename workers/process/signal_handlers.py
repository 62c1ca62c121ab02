"""Signal handlers of a child process that need nothing of its state, and the end of its group."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType


def ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the supervisor handles Ctrl-C and hang-up of the terminal."""


def exit_at_once(_number: int, _frame: FrameType | None) -> NoReturn:
    """Exit without cleaning up: SIGQUIT asks for it."""
    os._exit(128 + signal.SIGQUIT)


def kill_own_group() -> None:
    """Send SIGKILL to this process's own group, which ends this process too.

    Only if this process leads the group: otherwise the group may be another process's.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)
