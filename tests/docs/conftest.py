from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ground import AHEAD
from tests.support.lending import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.lending import Lending
    from tests.support.postgres import Cluster


@pytest.fixture(scope="session")
def grown(cluster: Cluster, template: str) -> Lending:
    """Return databases with the partitions that the first maintenance process of each page would make."""
    return prepare(cluster, template, f"SELECT * FROM jobherd.keep_partitions({AHEAD}, NULL)")


@pytest.fixture
def database(grown: Lending) -> Iterator[str]:
    """Yield the DSN of a fresh database with the schema, as it is after its first minute."""
    with grown.database() as dsn:
        yield dsn
