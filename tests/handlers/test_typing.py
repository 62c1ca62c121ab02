from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

from tests.docs.pages import ROOT

HERE = Path(__file__).parent
CONNECTIONS = HERE / "connection_cases.py"


def test_mypy_checks_the_arguments_of_producers():
    cases = HERE / "typing_cases.py"
    out, problems, status = api.run(["--strict", "--warn-unused-ignores", "--follow-imports=silent", str(cases)])
    assert status == 0, out + problems


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["mypy", "--strict", "--follow-imports=silent", "--no-error-summary"], r":(\d+): error"),
        (["pyright", "--pythonpath", sys.executable], r":(\d+):\d+ - error"),
        (["ty", "check", "--output-format", "concise", "--python", sys.prefix], r":(\d+):\d+: error"),
    ],
    ids=["mypy", "pyright", "ty"],
)
def test_type_checkers_accept_supported_connections_and_reject_others(command, line, tmp_path):
    name, *arguments = command
    done = subprocess.run(
        [str(Path(sys.executable).parent / name), *arguments, str(CONNECTIONS)],
        cwd=ROOT if name == "mypy" else tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = {number for number, text in enumerate(CONNECTIONS.read_text().splitlines(), 1) if text.endswith("# wrong")}
    reported = {int(number) for number in re.findall(line, done.stdout)}
    assert reported == wrong, done.stdout + done.stderr
