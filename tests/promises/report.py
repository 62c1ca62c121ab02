"""Plugin for pytest.

`-p tests.promises.report --promises FILE` runs only tests that carry a row, and appends their outcomes to FILE.

A line has a row, a test and its outcome. Lines are only appended, because the suite runs in several processes.
"""

from __future__ import annotations

import os

import pytest

from tests.promises.rows import MARK

_ended: list[tuple[str, str, str]] = []


def pytest_addoption(parser):
    parser.addoption(
        "--promises", metavar="FILE", help="run only tests that carry a promise, and note in FILE how they ended"
    )


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--promises"):
        return
    carrying = []
    for item in items:
        ids = [row for mark in item.iter_markers(MARK) for row in mark.args]
        if ids:
            item.user_properties.append((MARK, ids))  # the reports contain it, also between processes
            carrying.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in carrying])
    items[:] = carrying


def pytest_runtest_logreport(report: pytest.TestReport):
    if report.when == "call" or not report.passed:
        _ended.extend(
            (row, report.nodeid, report.outcome) for name, ids in report.user_properties if name == MARK for row in ids
        )


def pytest_sessionfinish(session):
    file = session.config.getoption("--promises")
    if file:
        noted = "".join("\t".join(line) + "\n" for line in _ended).encode()
        out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(out, noted)  # in one write: several processes end at the same time
        os.close(out)
