"""Fixtures of the tests with real supervisors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import AUDIT, Stage
from tests.support.ground import AHEAD
from tests.support.lending import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.gate import Gate
    from tests.support.lending import Lending
    from tests.support.postgres import Cluster


@pytest.fixture(scope="session")
def staged(cluster: Cluster, template: str) -> Lending:
    """Databases that record each move of a job, with the partitions that maintenance would create at first."""
    return prepare(cluster, template, AUDIT, f"SELECT * FROM jobherd.keep_partitions({AHEAD}, NULL)")


@pytest.fixture
def stage(staged: Lending, tmp_path: Path, gate: Gate) -> Iterator[Stage]:
    """A fresh database that records each move of a job; the supervisors that are started on it end with the test."""
    with staged.database() as dsn, Stage(dsn, tmp_path, audit=False) as standing:
        yield standing
        standing.show()
