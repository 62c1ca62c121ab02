"""How the suite handles a process that hangs, or whose output another process keeps open."""

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


def test_hanging_process_is_killed_and_its_stack_is_printed():
    process = started(STUCK)
    said = "".join(follow(process, silence=0.5))
    assert process.wait() < 0
    assert "in stuck" in said


def test_suite_does_not_wait_for_orphans_that_keep_the_output_open(capsys):
    process = started(LEAVES_SOMEBODY)
    try:
        assert follow(process) == ["and that was all\n"]
        assert capsys.readouterr().out == "tests/support/test_lanes.py ..\n"
        assert process.wait() == 0
    finally:
        subprocess.run(["pkill", "-KILL", "-g", str(process.pid)], check=False)
