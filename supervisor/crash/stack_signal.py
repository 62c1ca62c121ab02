"""Sends a child the signal at which it writes its stacks to its status board."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from jobherd.workers.system.threads import handles_sigusr1

if TYPE_CHECKING:
    from jobherd.workers.ipc.status_board import StatusBoard

_libc: Final = ctypes.CDLL(None, use_errno=True)


def signal_for_stacks(pid: int, board: StatusBoard) -> bool:
    """Signal a child to write its stacks to its status board; return False if it does not handle the signal.

    Args:
        pid: of a child of this supervisor that is not reaped.
        board: its status board.
    """
    if not handles_sigusr1(pid):
        return False
    board.open_stacks()
    if hasattr(_libc, "tgkill"):
        # Only its main thread shows whether the answer is complete, so send it to that.
        _libc.tgkill(pid, pid, int(signal.SIGUSR1))
    else:  # a C library from before 2019; the kernel prefers the main thread
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
    return True
