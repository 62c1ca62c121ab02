"""Each mutant changes the place that it means.

One whose text has moved, or stands twice, shows nothing.
"""

from __future__ import annotations

import re

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


@pytest.mark.parametrize(
    "mutant",
    [one for one in MUTANTS if one.file.startswith(("sql/schema/", "sql/migrations/"))],
    ids=lambda one: one.name,
)
def test_its_function_is_in_force(mutant: Mutant):
    """A mutant of a function that a later migration replaces would change nothing, and survive."""
    path = ROOT / mutant.file
    before = path.read_text().partition(mutant.was)[0] + mutant.was
    named = re.findall(r"FUNCTION (jobherd\.\w+\()", before)
    later = sorted((ROOT / "sql" / "migrations").glob("*.sql"))
    if path.parent.name == "migrations":
        later = [one for one in later if one.name > path.name]
    assert not named or [one.name for one in later if f"FUNCTION {named[-1]}" in one.read_text()] == []
