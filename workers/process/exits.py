"""The `atexit` callbacks of a process that loads user code, and that ends by `os._exit`, which runs none."""

from __future__ import annotations

import atexit
import logging
from typing import Any, Final

_module: Final[Any] = atexit  # the two functions are not in its type description, and are there since Python 3.0


def forget_inherited() -> None:
    """Drop the callbacks that the parent process registered: they are about its own resources. Call it before user code is loaded."""
    _module._clear()  # noqa: SLF001  # it has no other name
    atexit.register(logging.shutdown)


def run_exits() -> None:
    """Run the callbacks, the last one first, each once. What one raises is written to standard error, and the others run."""
    _module._run_exitfuncs()  # noqa: SLF001  # it has no other name
