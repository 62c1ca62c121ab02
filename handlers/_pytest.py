"""The pytest plugin: fixtures that run jobs inline.

Only pytest loads it; no other module of this package may import it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._enqueue.driver_connection import CallersConnection
    from jobherd.handlers.testing import Inline, RealWorker, Recorder


@pytest.fixture
def jobherd_dsn() -> str | None:
    """Return the address of the test database.

    Override it in a conftest.py. Default: as for `Client`.
    """
    return None


@pytest.fixture
def jobherd_connection(request: pytest.FixtureRequest) -> CallersConnection | None:
    """Return the test's own connection or session, in whose transaction `jobherd_inline` runs.

    Override it in a conftest.py. Default: Django's connection in a test with `django_db`, else None.
    """
    if request.node.get_closest_marker("django_db") is None and "db" not in request.fixturenames:
        return None
    if not request.config.pluginmanager.hasplugin("django"):
        return None
    request.getfixturevalue("db")
    connections = sys.modules["django.db"].connections
    found: CallersConnection = connections[sys.modules["jobherd.django.backend"].database_alias()]
    return found


@pytest.fixture
def jobherd_inline(jobherd_dsn: str | None, jobherd_connection: CallersConnection | None) -> Iterator[Inline]:
    """Yield `jobherd.testing.inline`: jobs run directly, in a transaction that is rolled back."""
    # a plugin is imported by every pytest run in the environment
    from jobherd.handlers.testing import inline  # noqa: PLC0415

    with inline(jobherd_dsn, connection=jobherd_connection) as jobs:
        yield jobs


@pytest.fixture
def jobherd_worker(jobherd_dsn: str | None) -> Iterator[RealWorker]:
    """Yield a `jobherd.testing.RealWorker`: a supervisor with one worker, stopped at the end of the test."""
    from jobherd.handlers.testing import RealWorker  # noqa: PLC0415  # as above

    with RealWorker(jobherd_dsn) as worker:
        yield worker


@pytest.fixture
def jobherd_recorder() -> Iterator[Recorder]:
    """Yield `jobherd.testing.recorder`: it records enqueued jobs, without a database."""
    from jobherd.handlers.testing import recorder  # noqa: PLC0415  # as above

    with recorder() as jobs:
        yield jobs
