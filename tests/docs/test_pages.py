"""Tests that a page is in the folder of its purpose, and short enough to be read to the end."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES, ROOT, prose

FOLDERS = {"tutorial", "how-to/write", "how-to/operate", "how-to/migrate", "reference", "explanation", "project"}
MOST = 1500
OVER: dict[str, int] = {}
"""Pages that are still too long, with a limit that may only fall."""
DOCS = ROOT / "docs"


def words(page):
    """Count its words, but not the measured tables, which programs write between markers."""
    measured = sum(
        len(part.split()) for part in re.findall(r"<!-- begin \w+ -->(.*?)<!-- end", page.read_text(), re.DOTALL)
    )
    return len(prose(page).split()) - measured


@pytest.mark.parametrize("page", [page for page in PAGES if DOCS in page.parents], ids=lambda page: page.stem)
def test_page_has_at_most_1500_words(page):
    name = str(page.relative_to(DOCS).with_suffix(""))
    if name.startswith("reference/"):
        return
    assert words(page) <= OVER.get(name, MOST), "split the page, or link to a reference"
    assert name not in OVER or words(page) > MOST, "remove the page from OVER"


def test_each_page_is_in_a_known_folder_and_has_a_unique_name():
    pages = [page for page in PAGES if DOCS in page.parents and page.parent != DOCS]
    assert {str(page.parent.relative_to(DOCS)) for page in pages} == FOLDERS
    assert len({page.stem for page in PAGES}) == len(PAGES)
