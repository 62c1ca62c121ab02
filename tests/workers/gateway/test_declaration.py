"""Tests what the gateway stores about the kinds that a remote worker declares."""

from __future__ import annotations

import pytest

from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway.access import Principal
from jobherd.workers.gateway.declaration import Declaration, declaration_of
from jobherd.workers.gateway.results import rules_of
from tests.support.queue import Queue

KINDS = (
    m.KindPolicy(kind="image:resize", queue="gpu", priority=-5, max_attempts=9, max_crashes=2, max_running=4,
                 keep_completed_days=3, redact=["$.card"]),
    m.KindPolicy(kind="mail:receipt"),
)  # fmt: skip


def declare(*kinds: m.KindPolicy, **rights: object) -> Declaration | None:
    rules = {one.kind: rules_of(one) for one in kinds}
    return declaration_of(kinds, rules, Principal("team-a", **rights))


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def store(queue: Queue, *kinds: m.KindPolicy) -> None:
    declaration = declare(*kinds)
    queue.connection.execute(queue.text("remote/register_kinds"), declaration.kinds)
    queue.connection.execute(queue.text("lease/declare_limits"), declaration.limits)


def stored(queue: Queue) -> dict[str, tuple]:
    rows = queue.run(
        "SELECT name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact FROM jobherd.kinds"
    )
    return {row[0]: row[1:] for row in rows}


def test_each_declared_field_is_stored_and_each_missing_one_gets_its_default(queue):
    store(queue, *KINDS)
    assert stored(queue) == {
        "image:resize": ("gpu", -5, 9, 2, 3, 30, ["$.card"]),
        "mail:receipt": ("default", 0, 5, 3, 30, 30, []),
    }
    limits = queue.run("SELECT scope, name, max_running, limited_by FROM jobherd.gates")
    assert limits == [("kind", "image:resize", 4, "@handler")]


def test_undeclared_retention_and_redaction_keep_their_stored_values(queue):
    store(queue, *KINDS)
    store(queue, m.KindPolicy(kind="image:resize", keep_failed_days=0))
    assert stored(queue)["image:resize"] == ("default", 0, 5, 3, 3, 0, ["$.card"])
    assert queue.run("SELECT 1 FROM jobherd.gates") == [], "a limit that no handler declares any more is removed"


def test_repeated_declaration_writes_nothing(queue):
    store(queue, *KINDS)
    rows = "SELECT array_agg(xmin::text ORDER BY name) FROM jobherd.kinds"
    before = queue.run(rows)
    store(queue, *KINDS)
    assert queue.run(rows) == before


def test_client_declares_only_kinds_that_it_may_run_for_all_tenants():
    assert declare(*KINDS, kinds=("mail:*",)).kinds["names"] == ["mail:receipt"]
    assert declare(*KINDS, kinds=("report",)) is None
    assert declare(*KINDS, tenants=("acme",)) is None
    assert declare() is None


def test_kind_without_a_policy_keeps_all_stored_values(queue):
    store(queue, *KINDS)
    before = stored(queue), queue.run("SELECT name, max_running FROM jobherd.gates")
    store(queue, m.KindPolicy(kind="image:resize"), m.KindPolicy(kind="a:new"))
    after = stored(queue), queue.run("SELECT name, max_running FROM jobherd.gates")
    assert after == ({**before[0], "a:new": ("default", 0, 5, 3, 30, 30, [])}, before[1])
