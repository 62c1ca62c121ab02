"""Tests rules for every file of the tree.

Files must be explained, finished, and free of local paths, registries and passwords.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PACKAGES = ("supervisor", "workers", "handlers", "sql")
OUTSIDE = {".git", ".venv", ".jobherd", ".bench", "build", "dist", "__pycache__", "node_modules"}
"""Folders to skip without git: they contain no work of the project."""
PICTURES = {".png", ".gif", ".ico", ".woff2"}


def files():
    """Return the files that git tracks or does not ignore. Without git, return all files outside of OUTSIDE."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        try:
            named = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
            return [ROOT / name for name in named if name and (ROOT / name).is_file()]
        except (OSError, subprocess.CalledProcessError):
            pass
    found = []
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if name not in OUTSIDE and not name.endswith((".egg-info", "_cache"))]
        found += [ROOT / folder / name for name in names]
    return found


# this file contains the patterns
FILES = [file for file in files() if file.suffix not in PICTURES and file != Path(__file__)]


def lines_with(pattern):
    found = []
    for file in FILES:
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line)
        ]
    return found


def test_files_of_the_tree_are_found():
    assert {"README.md", "setup.cfg", "Makefile"} <= {file.name for file in FILES}
    assert len(FILES) > 100


def test_no_file_has_a_todo_comment():
    assert lines_with(r"\b(?:TODO|FIXME|XXX)\b") == []


def test_no_file_has_a_path_of_a_local_machine():
    assert lines_with(r"/(?:home|Users)/(?!\w*[<{$])\w+|/root/|" + re.escape(f"{ROOT}/")) == []


def test_no_file_has_an_address_of_a_package_registry():
    assert (
        lines_with(
            r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|crates\.io|proxy\.golang\.org|--(?:extra-)?index-url"
        )
        == []
    )


def test_no_address_outside_tests_has_a_password_that_is_not_a_placeholder():
    """An address in an example may contain only a placeholder password."""
    found = [
        line
        for line in lines_with(r"://\w+:[^@/\s$\"'{}]+@")
        if not re.search(r"://\w+:(?:\.\.\.|secret\w*|password|hunter2|geheim|pw|x+|p%\w+|\*+)@", line)
    ]
    assert [line for line in found if not line.startswith("tests/")] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_each_module_has_a_docstring_of_at_least_four_words(package):
    silent, empty = [], []
    for file in FILES:
        name = file.relative_to(ROOT)
        if file.suffix != ".py" or name.parts[0] != package:
            continue
        text = ast.get_docstring(ast.parse(file.read_text()))
        if not text:
            silent.append(str(name))
        elif len(text.split("\n\n")[0].split()) < 4:
            empty.append(f"{name}: {text.splitlines()[0]}")
    assert silent == []
    assert empty == []


def test_each_statement_file_starts_with_a_comment():
    silent = [
        str(file.relative_to(ROOT))
        for file in FILES
        if file.suffix == ".sql"
        and file.is_relative_to(ROOT / "sql" / "queries")
        and not file.read_text().startswith("-- ")
    ]
    assert silent == []


def test_each_folder_of_tests_is_a_package():
    folders = {file.parent for file in FILES if file.is_relative_to(ROOT / "tests") and file.name.startswith("test_")}
    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
