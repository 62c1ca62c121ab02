"""What becomes of a process of the suite that is stuck, or whose output somebody else holds open."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.__main__ import follow

STUCK = """
import os, signal, threading
def stuck():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM, signal.SIGINT})
    os.write(1, b"on\\n")
    threading.Event().wait()
stuck()
"""
LEAVES_SOMEBODY = """
import os, subprocess, sys
os.write(1, b"on\\n")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
print("tests/support/test_lanes.py ..", "and that was all", sep="\\n", flush=True)
"""


def started(program: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 3) == b"on\n"
    return process


def test_one_that_is_stuck_says_where():
    process = started(STUCK)
    said = "".join(follow(process, silence=0.5))
    assert process.wait() < 0
    assert "in stuck" in said


def test_what_it_leaves_behind_is_not_waited_for(capsys):
    process = started(LEAVES_SOMEBODY)
    try:
        assert follow(process) == ["and that was all\n"]
        assert capsys.readouterr().out == "tests/support/test_lanes.py ..\n"
        assert process.wait() == 0
    finally:
        subprocess.run(["pkill", "-KILL", "-g", str(process.pid)], check=False)
