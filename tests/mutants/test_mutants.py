"""Each mutant changes the place that it means.

One whose text has moved, or stands twice, shows nothing.
"""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import MUTANTS
from tests.mutants.mutant import Mutant
from tests.support.herd import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_stands_once(mutant: Mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.was) == 1, "make mutants would say MOVED"
    assert mutant.becomes != mutant.was
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists()
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()
