"""The short form of `make points`: one SIGKILL at each named point of the core."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.herd import ROOT


@pytest.mark.server
def test_every_invariant_holds_after_a_sigkill_at_each_named_point():
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.points", "--times", "1", "--parents", "1", "--tour", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert done.stdout.count("\nholds ") >= 9, "the campaign checks fewer invariants than before"
    assert "BROKEN" not in done.stdout
