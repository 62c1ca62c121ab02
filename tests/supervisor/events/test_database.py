"""What the supervisor does at notifications and at events of its database session."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from jobherd.supervisor.database.notifications import Pooler, Rejected


@pytest.mark.promise("C23")
@pytest.mark.parametrize(("coalesce", "calls"), [(1, 7), (3, 3), (1000, 1)])
def test_coalesce_notifies_sets_how_many_notifications_wake_one_worker(supervisor, coalesce, calls):
    supervisor.settings.now = replace(supervisor.settings.now, coalesce_notifies=coalesce, queues=("a", "b*"))
    supervisor.db.notifications = [*"aaaa", "bb", "bc", "b", "c"]
    supervisor.events.step(time.monotonic())
    assert supervisor.slot_table.pending_wakeups == calls


@pytest.mark.parametrize(
    "payload",
    [
        "@refused:claim_jobs: ERROR: anything",
        "@pooler",
        "@unknown",
        "@",
        "@renewal:",
        "@order:",
        "@due:now",
        "@cancel:\n",
        "@table",
    ],
)
def test_notification_text_cannot_reach_the_log(supervisor, caplog, payload):
    supervisor.db.notifications = [payload]
    supervisor.events.step(time.monotonic())
    assert caplog.records == []
    assert not supervisor.events._pooler_seen
    supervisor.db.setup.listen_disabled = True
    supervisor.db.happened = [Pooler(), Rejected("claim/claim_jobs", "ERROR: it is so")]
    supervisor.events.step(time.monotonic())
    assert ["a pooler is between" in caplog.text, "claim_jobs: ERROR: it is so" in caplog.text] == [True, True]
