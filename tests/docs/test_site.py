"""Tests that the site builds without a warning about a broken link or reference, and that it has every page."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import psycopg
import pytest

from jobherd import handlers
from jobherd.workers.web.health import pages
from tests.docs.pages import PAGES, ROOT
from tests.support import http_page, log_page, sql_page
from tests.support.patience import LIMIT

INDEX = (ROOT / "docs" / "index.md").read_text()
API = (ROOT / "docs" / "reference" / "python-api.rst").read_text()


@pytest.mark.skipif(not importlib.util.find_spec("sphinx"), reason="Sphinx is not installed: `make docs` installs it")
def test_site_builds_without_a_warning(tmp_path):
    words = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "html", "-c", "docs", "-d", tmp_path / "state", ".", tmp_path / "site"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=10 * LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        assert (tmp_path / "site" / page.relative_to(ROOT).with_suffix(".html")).exists(), page
    built = (tmp_path / "site" / "docs" / "reference" / "python-api.html").read_text()
    assert 'id="jobherd.Client.enqueue_many"' in built


def test_index_lists_each_page_once():
    listed = re.findall(r"^- \[.*?\]\((.*?)\)", INDEX, re.MULTILINE)
    pages = [
        page.relative_to(ROOT / "docs") for page in PAGES if ROOT / "docs" in page.parents and page.name != "index.md"
    ]
    assert sorted(listed) == sorted([*map(str, pages), "reference/python-api.rst"])


def test_api_reference_has_every_public_name():
    documented = set(re.findall(r"^\.\. auto(?:class|function|exception|data):: (\w+)", API, re.MULTILINE))
    assert documented == set(handlers.__all__)


def test_sql_reference_matches_the_schema(database):
    with psycopg.connect(database) as connection:
        assert sql_page.PAGE.read_text() == sql_page.render(connection), "run: python -m tests.support.sql_page"


def test_log_events_reference_matches_the_code():
    assert log_page.PAGE.read_text() == log_page.render(), "run: python -m tests.support.log_page"


def test_log_message_is_found_with_its_level_and_fields():
    text = """
log.warning("%d jobs were lost after %.1f s", 1, 2.0, extra={"jobs": ids, **more})
log.info(words, extra=ids)
self.fleet.warnings.append(f"{name}: {words} it is killed")
box.append("not a message of the log")
"""
    assert list(log_page.events_of(text)) == [
        log_page.Event("WARNING", "… jobs were lost after … s", ("jobs",)),
        log_page.Event("WARNING", "…: … it is killed"),
    ]


def test_http_reference_matches_the_routes():
    assert http_page.PAGE.read_text() == http_page.render(), "run: python -m tests.support.http_page"
    assert set(http_page.HEALTH) == set(pages(None, why_no_page="off")) | {"/metrics"}
