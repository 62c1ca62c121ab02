"""Runs a test in a separate process, because gRPC starts threads and the process of the other tests forks.

The module of such a test and the modules that it imports must not load gRPC at import either.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.checkout import import_path
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Body = Callable[[Path], Awaitable[None]]


def apart(body: Body) -> Callable[[Path], None]:
    """Turn a coroutine function into a test that runs in a separate process; it gets an empty folder."""

    def test(tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.apart", body.__module__, body.__name__, str(tmp_path)],
            env=os.environ | {"PYTHONPATH": import_path()},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    named: Any = test
    named.__name__, named.__doc__, named.__module__, named.body = body.__name__, body.__doc__, body.__module__, body
    return test


if __name__ == "__main__":
    module, name, folder = sys.argv[1:]
    asyncio.run(getattr(importlib.import_module(module), name).body(Path(folder)))
