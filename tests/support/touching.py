"""For pytest.

`--touching` runs only what touches a server: whatever else holds with one version of PostgreSQL
holds with all.

A test says so by a fixture (`cluster`, and whatever is made of it), by its module, which imports
one of MAKERS, or by `@pytest.mark.server`, for one whose server is made in another process. One
that makes a server without saying so fails: `make test-pg15` would leave it out without a word.
"""

from __future__ import annotations

import pytest

from tests.support import postgres

MAKERS = ("Cluster", "ground", "bench_of_its_own")


def pytest_addoption(parser):
    parser.addoption("--touching", action="store_true", help="run only the tests that touch a PostgreSQL server")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--touching"):
        config.hook.pytest_deselected(items=[item for item in items if not touches(item)])
        items[:] = [item for item in items if touches(item)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    postgres.told = touches(item)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    postgres.told = True


def touches(item: pytest.Item) -> bool:
    """Whether a test says that it touches a server."""
    return (
        "cluster" in getattr(item, "fixturenames", ())
        or item.get_closest_marker("server") is not None
        or any(hasattr(getattr(item, "module", None), maker) for maker in MAKERS)
    )
