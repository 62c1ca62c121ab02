"""Each mutant can be applied. A mutant whose text is gone or occurs twice would prove nothing."""

from __future__ import annotations

import re

import pytest

from tests.mutants.__main__ import MUTANTS
from tests.mutants.mutant import Mutant
from tests.support.herd import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_text_of_a_mutant_occurs_once_and_its_tests_exist(mutant: Mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.was) == 1, "make mutants would report MOVED"
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
def test_mutated_function_is_not_replaced_by_a_later_migration(mutant: Mutant):
    """Otherwise the mutant would have no effect and survive."""
    path = ROOT / mutant.file
    before = path.read_text().partition(mutant.was)[0] + mutant.was
    named = re.findall(r"FUNCTION (jobherd\.\w+\()", before)
    later = sorted((ROOT / "sql" / "migrations").glob("*.sql"))
    if path.parent.name == "migrations":
        later = [one for one in later if one.name > path.name]
    assert not named or [one.name for one in later if f"FUNCTION {named[-1]}" in one.read_text()] == []
