"""Runs the `atexit` callbacks of a process that loads user code and ends by `os._exit`, which runs none."""

from __future__ import annotations

import atexit
import logging
from typing import Any, Final

_module: Final[Any] = atexit  # The two functions are missing in its type stubs, and exist since Python 3.0.


def forget_inherited() -> None:
    """Drop the callbacks that the supervisor registered, because they concern its own resources.

    Call it before user code is loaded.
    """
    _module._clear()  # noqa: SLF001  # it has no other name
    atexit.register(logging.shutdown)


def run_exits() -> None:
    """Run each callback once, the last one first.

    An exception of one is written to standard error, and the others still run.
    """
    _module._run_exitfuncs()  # noqa: SLF001  # it has no other name
