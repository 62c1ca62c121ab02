from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.seats import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    """A supervisor's row and the children a test starts under it: see tests/support/seats.py."""
    with Bench(database) as own:
        yield own
