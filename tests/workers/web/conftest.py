"""Time for the statements and scrapes of these tests, on a busy machine too."""

from __future__ import annotations

import pytest

from tests.support.patience import LIMIT


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr("jobherd.workers.web.queue_counts.STATEMENT", LIMIT)
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", LIMIT)
