"""The rows of `rows.md`, and the tests that carry them, found by reading the tests and not by running them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_name("rows.md")
MARK = "promise"

_ROW = re.compile(r"\| ([A-E]\d+) \| (.+?) \| (.*?) ?\|")


@dataclass(frozen=True, slots=True)
class Row:
    """One promise."""

    id: str
    text: str
    ours: tuple[str, ...]
    """The parts of the last column."""

    @property
    def pages(self) -> list[tuple[str, str]]:
        """The pages that state the promise, each with its words."""
        found = [part.removeprefix("page ").partition(": ") for part in self.ours if part.startswith("page ")]
        return [(file, words) for file, _, words in found]


def rows() -> list[Row]:
    """Return every row, in the order of the documents."""
    found = [_ROW.fullmatch(line) for line in PAGE.read_text().splitlines()]
    return [Row(match[1], match[2], tuple(part for part in match[3].split("<br>") if part)) for match in found if match]


def carried() -> dict[str, list[str]]:
    """Return the tests that carry each row, as `file::test`. Rows without a test are not included."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for row in dict.fromkeys(row for decorator in node.decorator_list for row in _marked(decorator)):
                    found.setdefault(row, []).append(f"{file.relative_to(ROOT)}::{node.name}")
    return found


def _marked(tree: ast.AST) -> list[str]:
    """Return the rows in every `promise(...)` within a decorator.

    They are its own rows, or those of the cases of a parametrized test.
    """
    return [
        word.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == MARK
        for word in node.args
        if isinstance(word, ast.Constant)
    ]
