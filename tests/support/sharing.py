"""For pytest.

`-p tests.support.sharing --share FOLDER`. Several processes with the same arguments share the files
of tests between them.

Who is free takes the next file by making its mark in FOLDER; a file is run by one process, from top
to bottom. The processes are whole pytests with one thread each: tests fork, look at their own
threads and descriptors, and make themselves subreapers, and no helper thread of a distributor
stands beside them.
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
"""What takes longest goes first, so that all end at about the same time."""


def pytest_addoption(parser):
    parser.addoption(
        "--share", metavar="FOLDER", help="run only the files that no other process with the same FOLDER has taken"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep what pytest makes of the files, though PYTHONDONTWRITEBYTECODE be set.

    Else each process of each run makes it again, for seconds.
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
    """Run what nobody else has taken.

    The next test is found before this one ends: pytest keeps the fixtures that both use.
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
