"""Checks every interleaving of the models of the fencing token and of the concurrency limits.

`make model` checks the other models.
"""

from __future__ import annotations

import re
import shutil

import pytest

from tests.models.__main__ import FOLDER, Variant, search, variants

QUICK = [variant for model in ("claim", "slot") for variant in variants(FOLDER / f"{model}.pml") if not variant.wide]


@pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("cc") is None, reason="spin or cc is not installed: make spin"
)
@pytest.mark.parametrize("variant", QUICK, ids=lambda one: " ".join([one.model.stem, *one.flags]))
def test_design_holds_and_fails_without_any_one_of_its_guards(variant: Variant):
    found = search(variant, "-O0")
    assert bool(found.errors) is bool(variant.fails), f"{found.states} states, {found.why or 'no error'}"


def test_the_table_of_the_readme_names_exactly_the_models_that_exist():
    named = re.findall(r"^\| `([^`]+)` \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in FOLDER.glob("*.pml"))
