"""How the supervisor kills child processes."""

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


def test_kill_reaches_a_child_that_left_its_process_group_and_the_processes_left_there(supervisor):
    """A signal to a group succeeds if it reaches any process, and the supervisor sends SIGKILL only once.

    Without a signal to its own pid, such a child would have run its job indefinitely.
    """
    slot = next(supervisor.slot_table.workers())
    with subprocess.Popen([sys.executable, "-c", _MOVES], process_group=0, stdout=subprocess.PIPE) as child:
        assert child.stdout.read(1) == b"x"
        supervisor.slot_table.on_fork(slot, pid=child.pid, incarnation=1, now=time.monotonic(), started=0, jitter=0.0)
        supervisor.children._signal(slot, signal.SIGKILL, group=True)
        try:
            assert child.wait(LIMIT) == -signal.SIGKILL
            assert child.stdout.read() == b"", "a process of the group is alive and keeps the pipe open"
        finally:
            child.kill()
