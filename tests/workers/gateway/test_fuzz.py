"""Runs the fuzzer of the gateway's messages for some seconds. `make fuzz` takes ten minutes."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.checkout import import_path
from tests.support.patience import LIMIT


def test_arbitrary_messages_are_accepted_or_rejected():
    done = subprocess.run(
        [sys.executable, "-m", "tests.workers.gateway.fuzz", "--examples", "60"],
        env=os.environ | {"PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=3 * LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
