"""The fixtures that everybody uses.

What they are made of is in ``tests/support``; add new ones there and import them here.
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

# A shell starts what runs in the background with these ignored, and whatever we start would inherit
# that: no Ctrl-C could be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignorable in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(ignorable, signal.SIG_DFL)

pytest_plugins = ["tests.support.touching"]


def pytest_collection_finish() -> None:
    """What is there by now stays.

    No collection looks at it again, neither here nor in whatever a test forks, where each look
    would copy it.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def depth() -> Iterator[None]:
    """How deep calls may go is again what it was.

    Mypy raises it where it is run, and the next test would find nothing too deep.
    """
    was = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(was)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The PostgreSQL of this test run.

    A test that stops or kills a server makes its own: ``with Cluster() as own:``.
    """
    with Cluster(place=quick_place()) as running:
        yield running


@pytest.fixture(scope="session")
def template(cluster: Cluster) -> str:
    """The name of a migrated database that nobody is connected to."""
    name = cluster.create("template1")
    with psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        migrate(conn)
    return name


@pytest.fixture(scope="session")
def migrated(cluster: Cluster, template: str) -> Lending:
    return Lending(cluster, template)


@pytest.fixture
def database(migrated: Lending) -> Iterator[str]:
    """The DSN of a fresh database with the schema: its name may have been another test's."""
    with migrated.database() as dsn:
        yield dsn


@pytest.fixture
def empty_database(cluster: Cluster) -> Iterator[str]:
    """The DSN of a fresh database without the schema."""
    with cluster.database() as dsn:
        yield dsn


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate that handlers in processes started by this test find: see ``tests.support.gate``."""
    with Gate() as standing:
        monkeypatch.setenv(VARIABLE, str(standing.path))
        yield standing
