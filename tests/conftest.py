"""The fixtures that all tests share.

Their helpers are in ``tests/support``: add new helpers there and import them here.
"""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd.sql.migrate import migrate
from tests.support.gate import VARIABLE, Gate
from tests.support.lending import Lending
from tests.support.postgres import Cluster, quick_place

if TYPE_CHECKING:
    from collections.abc import Iterator

# A shell starts background processes with these signals ignored, and child processes inherit that:
# tests could not send Ctrl-C to a supervisor.
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignorable in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(ignorable, signal.SIG_DFL)

pytest_plugins = ["tests.support.touching"]


def pytest_collection_finish() -> None:
    """Exclude existing objects from garbage collection.

    Otherwise each collection in a forked child would copy the memory of these objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def depth() -> Iterator[None]:
    """Restore the recursion limit after each test.

    Mypy raises the limit when it runs in this process. Later tests of too deep nesting would fail.
    """
    was = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(was)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The PostgreSQL server of this test run.

    A test that stops or kills a server must create its own: ``with Cluster() as own:``.
    """
    with Cluster(place=quick_place()) as running:
        yield running


@pytest.fixture(scope="session")
def template(cluster: Cluster) -> str:
    """The name of a migrated database without sessions, from which others are copied."""
    name = cluster.create("template1")
    with psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        migrate(conn)
    return name


@pytest.fixture(scope="session")
def migrated(cluster: Cluster, template: str) -> Lending:
    return Lending(cluster, template)


@pytest.fixture
def database(migrated: Lending) -> Iterator[str]:
    """The DSN of a fresh database with the schema. An earlier test may have used a database of that name."""
    with migrated.database() as dsn:
        yield dsn


@pytest.fixture
def empty_database(cluster: Cluster) -> Iterator[str]:
    """The DSN of a fresh database without the schema."""
    with cluster.database() as dsn:
        yield dsn


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate for handlers in processes that this test starts: see ``tests.support.gate``."""
    with Gate() as standing:
        monkeypatch.setenv(VARIABLE, str(standing.path))
        yield standing
