"""Conditions on a claim: their place in the statement, and that only requested conditions are added."""

from __future__ import annotations

import pytest

from jobherd import sql
from jobherd.workers.database.wire import Wire
from jobherd.workers.job.row import claimed_jobs
from tests.support.queue import Queue

CLAIMS = ("claim/claim_jobs", "claim/claim_job")


@pytest.mark.parametrize("name", [*CLAIMS, "claim/claim_more"])
def test_claim_contains_only_the_requested_conditions(name):
    text, names = sql.numbered(name)
    assert "narrow" not in text
    assert not {"only_kinds", "not_kinds"} & set(names)
    narrowed, more = sql.numbered(sql.narrow(name, "of_kinds"))
    assert set(more) - set(names) == {"only_kinds"}
    assert len(narrowed) - len(text) < 100


def test_user_conditions_get_separate_names_and_their_number_is_limited(monkeypatch):
    monkeypatch.setattr(sql, "_own", {})
    name = sql.own_condition("kind = %(kind)s AND 1 %% 2 = 1", "own_0_", {"kind"})
    assert sql.own_condition("kind = %(kind)s AND 1 %% 2 = 1", "own_0_", {"kind"}) == name
    text, names = sql.numbered(sql.narrow("claim/claim_jobs", name))
    assert "own_0_kind" in names
    assert "1 % 2 = 1\n" in text
    with pytest.raises(ValueError, match="put what changes into their parameters"):
        for number in range(100):
            sql.own_condition(f"priority = {number}", "own_0_", {})


def test_condition_with_a_missing_parameter_is_rejected_by_name():
    with pytest.raises(ValueError, match=r"uses %\(kind\)s, which is not among its parameters"):
        sql.own_condition("kind = %(kind)s", "own_0_", {"kinds"})


def test_statement_that_takes_no_conditions_is_rejected():
    with pytest.raises(ValueError, match="no place for conditions"):
        sql.load("observe/show_time+of_kinds")


@pytest.mark.parametrize("name", CLAIMS)
def test_claim_with_conditions_takes_the_first_job_that_meets_them_in_any_schema(database, name):
    with Queue(database) as queue:
        queue.enqueue("a:b")
        second = queue.enqueue("a:c")
        queue.enqueue("a:c", priority=5)
        child = queue.child()
        wire = Wire(child.connection, "jobherd", prepared=True)
        parameters = child.parameters(1) | {"only_kinds": ["a:c"], "not_kinds": ["a:d"]}
        rows = wire.exchange((sql.narrow(name, "of_kinds", "not_of_kinds"), parameters))[0]
        assert [job.id for job in claimed_jobs(rows)] == [second]
        rows = wire.exchange((sql.narrow(name, "of_kinds"), parameters | {"only_kinds": []}))[0]
        assert [job.id for job in claimed_jobs(rows)] == [None], "there are jobs, but none that meets the condition"
    assert "eu.ready" in sql.load(sql.narrow(name, "of_kinds"), "eu")
