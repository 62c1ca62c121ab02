"""Handlers that leave a daemon behind, in several ways.

The daemon reports to the gate and stays until the test opens the gate.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from jobherd import handler
from tests.support.fleet import ROOT
from tests.support.gate import VARIABLE, at_gate

if TYPE_CHECKING:
    from collections.abc import Callable

ESCAPE = """
import os, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.setpgid(0, 0)
os.closerange(0, 4096)
os.chdir("/")
sys.path.insert(0, sys.argv[1])
os.environ[sys.argv[2]] = sys.argv[3]
from tests.support.gate import at_gate
at_gate(sys.argv[4])
"""


def program(label: str, environment: dict[str, str]) -> None:
    words = [sys.executable, "-c", ESCAPE, str(ROOT), VARIABLE, os.environ[VARIABLE], label]
    subprocess.run(words, env=environment, check=True)


def a_program(label: str) -> None:
    """Start a program as init scripts did: two forks, its own session and group, no descriptors."""
    program(label, dict(os.environ))


def a_program_without_environment(label: str) -> None:
    """Do the same with an empty environment, so that nothing names the worker that started it."""
    program(label, {})


def a_fork(label: str) -> None:
    """Fork the worker itself twice, without starting a program."""
    if (pid := os.fork()) != 0:
        os.waitpid(pid, 0)
        return
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    os.closerange(0, 4096)
    os.chdir("/")
    try:
        at_gate(label)
    finally:
        os._exit(0)


WAYS: dict[str, Callable[[str], None]] = {
    way.__name__: way for way in (a_program, a_program_without_environment, a_fork)
}


@handler("daemon:left", max_attempts=1)
def left(way: str, label: str) -> int:
    """Leave a daemon and return."""
    WAYS[way](label)
    return os.getpid()


@handler("daemon:beside", max_attempts=1, timeout="5m")
def beside(way: str, label: str) -> int:
    """Leave a daemon, and return when the test opens the gate."""
    WAYS[way](label)
    at_gate(f"{label} job")
    return os.getpid()


@handler("daemon:who", max_attempts=1)
def who() -> int:
    return os.getpid()
