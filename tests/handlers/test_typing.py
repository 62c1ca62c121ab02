from __future__ import annotations

from pathlib import Path

from mypy import api

HERE = Path(__file__).parent


def test_a_type_checker_sees_what_a_producer_passes():
    cases = HERE / "typing_cases.py"
    out, problems, status = api.run(["--strict", "--warn-unused-ignores", "--follow-imports=silent", str(cases)])
    assert status == 0, out + problems
