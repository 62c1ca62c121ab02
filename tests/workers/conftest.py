from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.lending import prepare
from tests.support.seats import WATCH, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.lending import Lending
    from tests.support.postgres import Cluster


@pytest.fixture(scope="session")
def watched(cluster: Cluster, template: str) -> Lending:
    """Databases with triggers that notify a bench when a job has changed its table."""
    return prepare(cluster, template, WATCH)


@pytest.fixture
def bench(watched: Lending) -> Iterator[Bench]:
    """A supervisor's row and the child processes that a test starts under it: see tests/support/seats.py."""
    with watched.database() as dsn, Bench(dsn, watched=True) as own:
        yield own
