from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent


@pytest.mark.timeout(300)
def test_a_type_checker_sees_what_a_producer_passes():
    cases = HERE / "typing_cases.py"
    out, problems, status = api.run(["--strict", "--warn-unused-ignores", "--follow-imports=silent", str(cases)])
    assert status == 0, out + problems
