"""pytest plugin: `--touching` runs only tests that use a PostgreSQL server.

Other tests have the same result with each version of PostgreSQL. A test declares that it uses a server
in one of three ways:

* by a fixture: `cluster`, or one that uses it,
* by its module, if that imports one of MAKERS,
* by `@pytest.mark.server`, if another process creates the server.

A test that creates a server without declaring it fails, because `make test-pg15` would silently skip it.
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
    """Return whether a test declares that it uses a server."""
    return (
        "cluster" in getattr(item, "fixturenames", ())
        or item.get_closest_marker("server") is not None
        or any(hasattr(getattr(item, "module", None), maker) for maker in MAKERS)
    )
