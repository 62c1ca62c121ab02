"""Tests the tasks that clients get from a claim, and which results are sent together with a claim."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from jobherd.handlers._remote import messages as m
from jobherd.handlers._values.outcome import OK
from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway.claims import SlotClaims, _add_task
from jobherd.workers.gateway.database_round import DatabaseRound
from jobherd.workers.gateway.requests import Outcomes, Reported
from jobherd.workers.gateway.settlements import Result, plan_transaction
from jobherd.workers.job.finished import Finished
from jobherd.workers.job.row import JobRow
from tests.workers.gateway.standing import ANY, out, refs

ROW = JobRow(7, 11, "mail", "high", '{"a":1}', 2, None, 0, 0, None, 1.5, 2.5, None, 0.25, False)
PLAIN = {
    "id": 11,
    "claim": 7,
    "kind": "mail",
    "queue": "high",
    "payload": b'{"a":1}',
    "attempt": 2,
    "waited_seconds": 0.25,
    "created_at_micros": 1_500_000,
    "run_at_micros": 2_500_000,
}


@pytest.mark.parametrize(
    ("of_row", "of_task"),
    [
        ({}, {}),
        ({"max_attempts": 4}, {"max_attempts": 4}),
        ({"crashes": 1}, {"crashes": 1}),
        ({"priority": -3}, {"priority": -3}),
        ({"timeout": 9.5}, {"timeout_seconds": 9.5}),
        ({"good_for": 4.5}, {"expires_in_seconds": 4.5}),
        ({"good_for": 0.0}, {"expires_in_seconds": -1.0}),
    ],
)
def test_task_has_the_values_of_its_row(of_row, of_task):
    message = m.WorkResponse()
    _add_task(message.tasks, ROW._replace(**of_row))
    assert list(message.tasks.tasks) == [m.Task(**PLAIN, **of_task)]


def results(*claims: int) -> Outcomes:
    """Return plain results of jobs 11 and 12 for these claims, of which only claim 41 is known as whole."""
    state = out()
    found = {ref: Finished(ref.task, OK, 1.0) for claim in claims for ref in refs(claim, 11, 12)}
    settle = a.Settle(1, 1, 7, 107, tuple(found))
    planned = [Result(7, ref.task, ref.claim, True, one) for ref, one in found.items()]
    return Outcomes([Reported(settle, "w", found)], plan_transaction(state, planned))


@pytest.mark.parametrize(
    ("requests", "sent"),
    [
        ([], None),
        ([results(41)], "remote/settle_claims"),
        ([results(41, 42)], None),  # two statements
        ([SimpleNamespace(send=lambda _: None), results(41)], None),
    ],
    ids=["nothing", "one statement", "two statements", "behind another request"],
)
def test_claim_is_sent_together_with_results_that_need_only_one_statement(monkeypatch, requests, sent):
    session = SimpleNamespace(next=("of a claim that was not sent", {}))
    seen = []
    monkeypatch.setattr(SlotClaims, "make", lambda *_: seen.append(session.next))
    claim = a.Claim(ANY, (), 0)

    monkeypatch.setattr(Outcomes, "send", lambda *_: None)

    async def run():
        DatabaseRound(session, 1, 3.0).run(claim, requests, lambda *_: None, lambda *_: None)

    asyncio.run(run())
    [following] = seen
    assert (following and following[0]) == sent
