"""A SIGKILL at each named point of the core, once: the short form of `make points`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.herd import ROOT


@pytest.mark.server
def test_nothing_is_lost_whichever_process_is_killed_wherever():
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.points", "--times", "1", "--parents", "1", "--tour", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert done.stdout.count("\nholds ") >= 9, "what the campaign looks at has become less"
    assert "BROKEN" not in done.stdout
