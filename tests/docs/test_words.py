"""Tests that texts name the actor and avoid the words that the wording guide replaces.

A budget may only fall. A commit that removes an avoided word lowers its number here.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACTORLESS = re.compile(r"(?<![\"`])\b(?:whoever|whosoever|nobody|somebody|everybody|anybody)\b(?![\"`])", re.IGNORECASE)
"""Words that name no actor. In quotes, `nobody` is the account of that name."""
BUDGET = {
    "anew": 0,
    "at the door": 0,
    "beside": 6,
    "bulletins?": 0,
    "by itself|by themselves": 3,
    "couriers?": 0,
    "for ever": 0,
    "give back|gives back|given back|hand back|handed back|put back|puts back": 2,
    "goes on|go on": 0,
    "heeds?|heeded": 0,
    "hears|heard|hearing": 3,
    "in hand": 0,
    "is over|are over": 5,
    "keepers?": 0,
    "lets? go": 0,
    "look at|looks at|looked at": 4,
    "mends?|mended|mending": 0,
    "neighbours?|siblings?": 0,
    "nudged?|nudges": 0,
    "of its own|of their own": 39,
    "reckons?|reckoned": 0,
    "strangers?": 7,
    "torn": 0,
    "undertakers?": 0,
}
"""How often a word to replace still occurs, over all files."""
FILES = sorted(
    path
    for folder in ("supervisor", "workers", "handlers", "sql", "docs", "deploy")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".proto", ".sql", ".md", ".html", ".yml", ".yaml", ".json"}
    and "migrations" not in path.parts
    and "campaigns" not in path.parts
    and path.name != "schema.sql"
) + [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]


TESTS = sorted((ROOT / "tests").rglob("*.py"))


def words_of(path: Path) -> Iterator[str]:
    """Yield the comments and docstrings of a file of tests, and the names of its tests as words."""
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield docstring
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield name.replace("_", " ")


@cache
def text() -> str:
    """Return the text of all files, in lower case."""
    return "\n".join(path.read_text() for path in FILES).lower()


def spent(word: str) -> int:
    return len(re.findall(rf"\b(?:{word})\b", text()))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_file_has_no_word_that_hides_the_actor(path):
    assert ACTORLESS.findall(path.read_text()) == [], "name the actor: the supervisor, a worker, a producer, you"


def test_tests_have_no_word_that_hides_the_actor():
    suspects = [path for path in TESTS if ACTORLESS.search(path.read_text().replace("_", " "))]
    found = [(path.name, words) for path in suspects for words in words_of(path) if ACTORLESS.search(words)]
    assert found == [], "name the actor: the supervisor, a worker, a producer, another session"


@pytest.mark.parametrize("word", BUDGET)
def test_word_to_replace_occurs_at_most_as_often_as_its_budget(word):
    assert spent(word) <= BUDGET[word], "the wording guide has the word to use instead"
