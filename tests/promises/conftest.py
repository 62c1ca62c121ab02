"""Fixtures for the tests of promises with real supervisors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.gate import Gate


@pytest.fixture
def stage(database: str, tmp_path: Path, gate: Gate) -> Iterator[Stage]:
    """Yield a stage on a fresh database, which shows what happened. Its supervisors end with the test."""
    with Stage(database, tmp_path) as standing:
        yield standing
        standing.show()
