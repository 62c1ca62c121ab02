"""The site builds without a warning, so each link and each reference in it leads somewhere; it has every page."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import psycopg
import pytest

from jobherd import handlers
from tests.docs.pages import PAGES, ROOT
from tests.support import sql_page
from tests.support.patience import LIMIT

INDEX = (ROOT / "docs" / "index.md").read_text()
API = (ROOT / "docs" / "reference" / "python-api.rst").read_text()


@pytest.mark.skipif(not importlib.util.find_spec("sphinx"), reason="Sphinx is not installed: `make docs` installs it")
def test_the_site_builds_without_a_warning(tmp_path):
    words = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "html", "-c", "docs", "-d", tmp_path / "state", ".", tmp_path / "site"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=10 * LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        assert (tmp_path / "site" / page.relative_to(ROOT).with_suffix(".html")).exists(), page
    built = (tmp_path / "site" / "docs" / "reference" / "python-api.html").read_text()
    assert 'id="jobherd.Client.enqueue_many"' in built


def test_each_page_is_listed_once():
    listed = re.findall(r"^- \[.*?\]\((.*?)\)", INDEX, re.MULTILINE)
    pages = [
        page.relative_to(ROOT / "docs") for page in PAGES if ROOT / "docs" in page.parents and page.name != "index.md"
    ]
    assert sorted(listed) == sorted([*map(str, pages), "reference/python-api.rst"])


def test_the_reference_of_the_api_has_every_public_name():
    documented = set(re.findall(r"^\.\. auto(?:class|function|exception|data):: (\w+)", API, re.MULTILINE))
    assert documented == set(handlers.__all__)


def test_the_reference_of_sql_is_that_of_the_schema(database):
    with psycopg.connect(database) as connection:
        assert sql_page.PAGE.read_text() == sql_page.render(connection), "run: python -m tests.support.sql_page"
