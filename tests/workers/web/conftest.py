"""Gives the statements and scrapes of these tests enough time on a busy machine."""

from __future__ import annotations

import pytest

from tests.support.patience import LIMIT


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr("jobherd.workers.web.queue_counts.STATEMENT", LIMIT)
    monkeypatch.setattr("jobherd.workers.web.exposition.PATIENCE", LIMIT)
