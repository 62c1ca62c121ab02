"""pytest plugin that divides test files among several processes: `-p tests.support.sharing --share FOLDER`.

Processes with the same arguments share the files. A free process takes the next file by creating a
mark in FOLDER, and runs the whole file in order. Each process is a complete pytest with one thread,
because tests fork, check their own threads and descriptors, and become subreapers. The helper threads
of other distribution plugins would interfere.
"""

from __future__ import annotations

import os
import sys
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = ("tests/system", "tests/cli")
"""The slowest files run first, so that all processes end at about the same time."""


def pytest_addoption(parser):
    parser.addoption(
        "--share", metavar="FOLDER", help="run only the files that no other process with the same FOLDER has taken"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the bytecode that pytest writes for test files, even if PYTHONDONTWRITEBYTECODE is set.

    Otherwise each process of each run compiles the files again, which takes seconds.
    """
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = kept


def pytest_collection_modifyitems(config, items):
    if config.getoption("--share"):
        items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the files that no other process has taken.

    The next test is chosen before the current one runs, so that pytest keeps the fixtures that both use.
    """
    folder = session.config.getoption("--share")
    if not folder or session.testsfailed or session.config.option.collectonly:
        return None  # as pytest does it
    tests = _taken(session, folder)
    test = next(tests, None)
    while test is not None:
        following = next(tests, None)
        session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        test = following
    return True


def _taken(session: pytest.Session, folder: str) -> Iterator[pytest.Item]:
    for file, tests in groupby(session.items, lambda item: item.location[0]):
        try:
            os.close(os.open(os.path.join(folder, file.replace(os.sep, "+")), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        yield from tests
