from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.lending import Lending
from tests.support.seats import WATCH, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres import Cluster


@pytest.fixture(scope="session")
def watched(cluster: Cluster, template: str) -> Iterator[Lending]:
    """Databases with the triggers that tell a bench when a job has moved."""
    with cluster.database(template=template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(WATCH)
        yield Lending(cluster, str(conninfo_to_dict(dsn)["dbname"]))


@pytest.fixture
def bench(watched: Lending) -> Iterator[Bench]:
    """A supervisor's row and the children a test starts under it: see tests/support/seats.py."""
    with watched.database() as dsn, Bench(dsn, watched=True) as own:
        yield own
