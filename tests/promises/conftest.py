"""What the tests of promises with real supervisors share."""

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
    """A fresh database that tells what happens in it; the supervisors that are started on it end with the test."""
    with Stage(database, tmp_path) as standing:
        yield standing
        standing.show()
