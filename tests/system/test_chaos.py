"""Forty faults of every type, from a fixed seed: the short form of `make chaos`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.herd import ROOT


@pytest.mark.timeout(600)
def test_every_invariant_holds_after_forty_random_faults():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.faults.chaos",
            "--seed",
            "20",
            "--minutes",
            "5",
            "--faults",
            "40",
            "--workers",
            "2",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert done.stdout.count("\nholds ") >= 14, "the campaign checks fewer invariants than before"
    assert "BROKEN" not in done.stdout
    found = re.search(r"^faults: (\d+) in", done.stdout, re.MULTILINE)
    assert found
    assert int(found[1]) >= 40
