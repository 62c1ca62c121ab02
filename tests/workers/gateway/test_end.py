"""Tests how the gateway's process ends."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.checkout import import_path
from tests.support.patience import LIMIT

SCRIPT = """
import asyncio, os, signal
from jobherd.workers.gateway import gateway

class Socket:
    def __init__(self, real): self.real = real
    def __getattr__(self, name): return getattr(self.real, name)
    def close(self):
        self.real.close()
        os.kill(os.getpid(), signal.SIGTERM)

class Gateway:
    def __init__(self, context): pass
    async def live(self):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, bool)
        loop._ssock = Socket(loop._ssock)

signal.signal(signal.SIGPIPE, lambda *_: None)  # as in every child
gateway.Gateway = Gateway
os._exit(gateway.run(None))
"""


def test_signal_while_the_event_loop_closes_is_harmless():
    """asyncio closes one end of its socket first. A signal then writes to the other end: each write raises SIGPIPE."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
