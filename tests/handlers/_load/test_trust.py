"""Jobherd does not load code that another OS user could change.

It checks owners, bytecode, the folders above and the links that lead to the code.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys

import pytest

from jobherd.handlers._load.registry import load
from jobherd.handlers._load.trust import ALLOW, find_fault
from tests.cli.shell import jobherd
from tests.workers.web.support import NO_DATABASE

NOBODY = 65534
HANDLER = "from jobherd import handler\n@handler('{kind}')\ndef work() -> None: ...\n"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another OS user")


@pytest.fixture
def folder(tmp_path):
    """A folder with a public and a private module."""
    made = tmp_path / "above" / "jobs"
    made.mkdir(parents=True)
    (made / "a.py").write_text(HANDLER.format(kind="a"))
    (made / "_private.py").write_text("x = 1")
    return made


def refused(*sources, place, words):
    """Check that no handler is loaded because of `place`, with `words` in the message."""
    loaded = load(sources)
    assert loaded.kinds == {}
    assert [problem.file for problem in loaded.problems] == [str(place)]
    assert words in loaded.problems[0].message
    assert f"{ALLOW}=1" in loaded.problems[0].message
    return True


def is_loaded(*sources):
    loaded = load(sources)
    return (sorted(loaded.kinds), loaded.problems) == (["a"], ())


@as_root
@pytest.mark.parametrize("what", ["", "a.py", "_private.py", ".."])
def test_file_or_folder_of_another_os_user_is_rejected(folder, what, monkeypatch):
    assert is_loaded(folder)
    place = folder.parent if what == ".." else folder / what
    os.chown(place, NOBODY, -1)
    assert refused(folder, place=place, words="it belongs to nobody, who could change it")
    assert refused(folder, place=place, words=f"chown root {place}")
    if what != "_private.py":
        assert refused(folder / "a.py", place=place, words="chown root")
    monkeypatch.setenv(ALLOW, "1")
    assert is_loaded(folder)


@as_root
def test_file_of_the_owner_of_the_jobherd_package_is_loaded(folder, monkeypatch):
    """One OS user deploys the application and its packages, another one runs it."""
    monkeypatch.setattr("jobherd.handlers._load.trust._trusted", lambda: {0, 12345, NOBODY})
    os.chown(folder / "a.py", NOBODY, -1)
    assert is_loaded(folder)


def compile_as(folder, source):
    """Replace the bytecode of the module with that of other source code."""
    other = folder.parent / "other.py"
    other.write_text(source)
    cached = importlib.util.cache_from_source(str(folder / "a.py"))
    py_compile.compile(
        str(other), cfile=cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True
    )
    return cached


@as_root
@pytest.mark.parametrize("by", ["file", "folder", "mode", "link"])
def test_bytecode_that_another_os_user_could_write_is_not_run(folder, by, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    cached = compile_as(folder, "raise SystemExit('bytecode was run')")
    place = cache = folder / "__pycache__"
    if by == "file":
        os.chown(cached, NOBODY, -1)
        place = cached
    elif by == "folder":
        os.chown(cache, NOBODY, -1)
    elif by == "mode":
        cache.chmod(0o777)
    else:
        elsewhere = tmp_path / "elsewhere"
        cache.rename(elsewhere)
        elsewhere.chmod(0o777)
        cache.symlink_to(elsewhere)
        place = elsewhere
    assert refused(folder, place=place, words="nothing is loaded from it")
    assert refused(folder / "a.py", place=place, words="nothing is loaded from it")


def test_shared_bytecode_folder_is_checked_too(folder, monkeypatch, tmp_path):
    prefix = tmp_path / "bytecode"
    monkeypatch.setattr(sys, "pycache_prefix", str(prefix))
    assert is_loaded(folder)
    prefix.mkdir(exist_ok=True)
    prefix.chmod(0o777)
    assert refused(folder, place=prefix, words="every OS user may put something else in the place of")


@pytest.mark.parametrize("source", ["file", "folder", "inside", "chain"])
def test_links_are_checked_with_their_targets_and_the_folders_between(folder, source, tmp_path):
    writable = tmp_path / "writable"
    writable.mkdir()
    (writable / "b.py").write_text(HANDLER.format(kind="b"))
    (writable / "jobs").symlink_to(folder)
    writable.chmod(0o777)
    link = tmp_path / "link"
    if source == "file":
        link = tmp_path / "link.py"
        link.symlink_to(writable / "b.py")
    elif source == "folder":
        link.symlink_to(writable)
    elif source == "inside":
        (folder / "b.py").symlink_to(writable / "b.py")
        link = folder
    else:
        link.symlink_to(writable / "jobs")
    loaded = load([link])
    assert loaded.kinds == {}
    assert [problem.file for problem in loaded.problems] == [str(writable)]
    writable.chmod(0o755)
    assert load([link]).problems == ()


@as_root
def test_link_of_another_os_user_in_a_sticky_folder_is_rejected(folder, tmp_path):
    common = tmp_path / "common"
    common.mkdir()
    common.chmod(0o1777)
    link = common / "jobs"
    link.symlink_to(folder)
    assert is_loaded(link)
    os.lchown(link, NOBODY, -1)
    assert refused(link, place=link, words="it belongs to nobody")


def test_package_is_checked_before_it_is_imported(tmp_path, monkeypatch):
    package = tmp_path / "trust_me"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it was run')")
    (package / "jobs.py").write_text(HANDLER.format(kind="a"))
    (tmp_path / "trust_one.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, place in (
        ("trust_me", package / "jobs.py"),
        ("trust_me.jobs", package / "jobs.py"),
        ("trust_one", tmp_path / "trust_one.py"),
    ):
        place.chmod(0o666)
        assert refused(name, place=place, words="every OS user may write to it")


def test_cyclic_links_and_missing_paths_have_no_fault(tmp_path):
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert find_fault(tmp_path / "self") is None
    assert find_fault(tmp_path / "no" / "where") is None


def test_application_folder_is_checked_too(folder, tmp_path):
    """This folder is the first entry of the import path, so a module in it could replace any other."""
    where = tmp_path / "where"
    where.mkdir()
    where.chmod(0o777)
    ran = jobherd("check", "--handlers", folder, dsn=NO_DATABASE, cwd=where)
    assert (ran.code, "setting app_dir" in ran.out + ran.err, f"chmod o-w {where}" in ran.out + ran.err) == (
        1,
        True,
        True,
    ), ran
    where.chmod(0o755)
    assert "app_dir" not in jobherd("check", "--handlers", folder, dsn=NO_DATABASE, cwd=where).out
