"""Plain words: what people who do not act are called in texts.

The budget of a file only falls; a file without one has none to spend.
"""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

AVOIDED = re.compile(r"\b(?:whoever|whosoever|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
BUDGET = {
    "docs/performance.md": 1,
    "docs/record.py": 2,
    "docs/screenshots.py": 1,
    "supervisor/cli/demo.py": 3,
    "supervisor/embedded/binaries.py": 2,
}
"""How often such a word stands in a file.

A name (the account or the way of a viewer called nobody), or a quoted text of a later pass.
"""
FILES = sorted(
    path
    for folder in ("supervisor", "workers", "handlers", "sql", "docs", "deploy")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".sql", ".md", ".html", ".yml", ".json"}
) + [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]


def spent(path) -> int:
    return len(AVOIDED.findall(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_a_sentence_names_who_acts(path):
    found = spent(path)
    assert found <= BUDGET.get(str(path.relative_to(ROOT)), 0), (
        "name the actor: the supervisor, a worker, a producer, you"
    )


def test_no_budget_is_larger_than_what_is_spent():
    assert {name: allowed for name, allowed in BUDGET.items() if spent(ROOT / name) < allowed} == {}
