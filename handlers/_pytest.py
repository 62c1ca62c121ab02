"""The pytest plugin: fixtures that run jobs inline.

Only pytest loads it; no other module of this package may import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers.testing import Inline, Recorder


@pytest.fixture
def jobherd_dsn() -> str | None:
    """Return the address of the test database.

    Override it in a conftest.py. Default: as for `Client`.
    """
    return None


@pytest.fixture
def jobherd_inline(jobherd_dsn: str | None) -> Iterator[Inline]:
    """Yield `jobherd.testing.inline`: jobs run directly, in a transaction that is rolled back."""
    # a plugin is imported by every pytest run in the environment
    from jobherd.handlers.testing import inline  # noqa: PLC0415

    with inline(jobherd_dsn) as jobs:
        yield jobs


@pytest.fixture
def jobherd_recorder() -> Iterator[Recorder]:
    """Yield `jobherd.testing.recorder`: it records enqueued jobs, without a database."""
    from jobherd.handlers.testing import recorder  # noqa: PLC0415  # as above

    with recorder() as jobs:
        yield jobs
