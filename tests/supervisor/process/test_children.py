"""What a supervisor does to its child processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from tests.support.patience import LIMIT

_MOVES = """
import os, signal, sys
if os.fork():
    os.setpgid(0, os.getpgid(os.getppid()))
    print(end="x", flush=True)
signal.pause()
"""


def test_who_has_left_its_group_is_killed_with_those_it_has_left_there(supervisor):
    """A signal to a group succeeds if it reaches anybody, and a kill is sent once.

    Such a child would have lived, and run its job, for ever.
    """
    slot = next(supervisor.fleet.workers())
    with subprocess.Popen([sys.executable, "-c", _MOVES], process_group=0, stdout=subprocess.PIPE) as child:
        assert child.stdout.read(1) == b"x"
        supervisor.fleet.on_fork(slot, pid=child.pid, incarnation=1, now=time.monotonic(), started=0, jitter=0.0)
        supervisor.children._signal(slot, signal.SIGKILL, group=True)
        try:
            assert child.wait(LIMIT) == -signal.SIGKILL
            assert child.stdout.read() == b"", "nobody is left who could say anything"
        finally:
            child.kill()
