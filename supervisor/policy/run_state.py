"""Defines the phases of a supervisor (serving, draining, shutting down), and how signals change them.

Values only: `SlotTable` stores the current phase, and `shutdown.py` decides what follows from it.
"""

from __future__ import annotations

import signal
from enum import Enum
from typing import Final


class RunState(Enum):
    """The phase of the supervisor. It only moves down this list."""

    SERVING = 1
    DRAINING = 2
    """After one signal to stop.

    Claim nothing more, finish running jobs within the drain timeout.
    """
    FAST_SHUTDOWN = 3
    """After a second signal: release running jobs, and exit within a second or two."""
    IMMEDIATE_SHUTDOWN = 4
    """After a signal to quit at once: kill every child."""


ONE_REQUEST: Final = 0.5
"""Seconds within which several signals to stop count as one: Ctrl-C plus the process manager's
SIGTERM, or a key pressed twice."""

AFTER_STOP: Final = {
    RunState.SERVING: RunState.DRAINING,
    RunState.DRAINING: RunState.FAST_SHUTDOWN,
    RunState.FAST_SHUTDOWN: RunState.FAST_SHUTDOWN,
    RunState.IMMEDIATE_SHUTDOWN: RunState.IMMEDIATE_SHUTDOWN,
}
"""The phase after SIGTERM or SIGINT, by the phase before."""
AFTER_QUIT: Final = dict.fromkeys(RunState, RunState.IMMEDIATE_SHUTDOWN)
"""The phase after SIGQUIT."""
AFTER_SIGNAL: Final[dict[int, dict[RunState, RunState]]] = {
    signal.SIGTERM: AFTER_STOP,
    signal.SIGINT: AFTER_STOP,
    signal.SIGQUIT: AFTER_QUIT,
}
