"""Settlements of many small claims of remote workers in one statement."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.queue import Queue
from tests.support.remote import Gateway

SHOWN = (
    "state, queue, kind, payload::text, error_code, error, attempts, crashes, priority, drop_on - current_date,"
    " finished_at - started_at, (extras).tenant"
)


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def gateway(queue):
    return Gateway(queue)


@pytest.fixture
def sessions(gateway):
    return [gateway.open(worker=name) for name in "ab"]


def claimed(queue, gateway, sessions, *sizes, **options):
    """Claim the given numbers of jobs for the sessions in turn. Return the claims as `settle_claims` expects them."""
    queue.enqueue_many("a:b", sum(sizes), **options)
    readys = [(sessions[place % 2], size) for place, size in enumerate(sizes)]
    claims = [(readys[dealt.ready - 1][0], dealt.token, dealt.jobs) for dealt in gateway.claim(*readys)]
    return sorted(claims, key=lambda claim: (claim[0].child, claim[1]))


def pairs(*claims):
    return [(session.child, token) for session, token, _ in claims]


def test_settle_claims_writes_the_same_rows_as_settle_jobs(queue, gateway, sessions):
    claims = claimed(queue, gateway, sessions, 2, 2, 2, 2, priority=3, tenant="acme")
    together, alone = claims[:2], claims[2:]
    count = sum(len(jobs) for _, _, jobs in together)
    results = [f'{{"n": {number}}}' for number in range(count)]
    usages = ['{"cpu": 1}', *[None] * (count - 1)]
    assert gateway.settle_claims(*together, results=results, usages=usages) == pairs(*together)
    for session, token, jobs in alone:
        gateway.settle(session, token, jobs, keeps=3)
    queue.run("UPDATE jobherd.history SET finished_at = started_at")
    rows = [
        queue.run(
            f"SELECT {SHOWN} FROM jobherd.history WHERE token = ANY (%s) ORDER BY id", [token for _, token, _ in some]
        )
        for some in (together, alone)
    ]
    strip = [[(*row[:3], *row[4:]) for row in some] for some in rows]
    assert strip[0] == strip[1]
    order = [job for _, _, jobs in together for job in jobs]
    found = queue.run(
        "SELECT id, result ->> 'n', usage ->> 'cpu', ran_on FROM jobherd.history WHERE result IS NOT NULL"
    )
    names = {job: f"{session.id} via test" for session, _, jobs in together for job in jobs}
    assert sorted(found) == sorted(
        (job, str(place), "1" if place == 0 else None, names[job]) for place, job in enumerate(order)
    )
    assert queue.count("running") == 0


def test_lost_claim_is_missing_from_the_answer_and_the_others_are_settled(queue, gateway, sessions):
    gone, short, good = claimed(queue, gateway, sessions, 2, 2, 2)
    gateway.settle(*gone[:2], gone[2], "abandoned")
    gateway.settle(*short[:2], short[2][:1])
    assert gateway.settle_claims(gone, short, good) == pairs(good)
    assert queue.states(gone[2]) == ["ready"] * 2
    assert queue.states(short[2]) == ["completed", "running"]
    assert queue.states(good[2]) == ["completed"] * 2
    assert gateway.settle(*short[:2], short[2]) == short[2][1:]


@pytest.mark.parametrize("what", ["child", "token", "size"])
def test_wrong_child_token_or_size_settles_nothing(queue, gateway, sessions, what):
    claim, other = claimed(queue, gateway, sessions, 2, 1)
    session, token, jobs = claim
    wrong = {"child": (other[0], token, jobs), "token": (session, other[1], jobs), "size": (session, token, jobs[:1])}[
        what
    ]
    assert gateway.settle_claims(wrong) == []
    assert queue.states(jobs) == ["running"] * 2
    assert queue.count("history") == 0


def test_duplicate_settlement_changes_nothing_and_is_found_as_settled(queue, gateway, sessions):
    claims = claimed(queue, gateway, sessions, 2, 1)
    assert gateway.settle_claims(*claims) == pairs(*claims)
    before = queue.run("SELECT id, finished_at FROM jobherd.history ORDER BY id")
    assert gateway.settle_claims(*claims) == []
    assert queue.run("SELECT id, finished_at FROM jobherd.history ORDER BY id") == before
    told = [(job, token) for _, token, jobs in claims for job in jobs]
    rows = gateway.rows("remote/find_settled", jobs=[job for job, _ in told], tokens=[token for _, token in told])
    assert sorted((row["job"], row["token"]) for row in rows) == sorted(told)


def test_claim_given_twice_is_settled_once(queue, gateway, sessions):
    one, other = claimed(queue, gateway, sessions, 2, 1)
    assert gateway.settle_claims(one, other, one) == pairs(one, other)
    assert queue.count("history") == 3


def test_late_outcome_of_a_reclaimed_session_is_not_settled(queue, gateway, sessions):
    late, good = claimed(queue, gateway, sessions, 2, 1)
    assert queue.supervisor().reclaim(dead=[late[0].id]) == (0, 2)
    assert gateway.settle_claims(late, good) == pairs(good)
    assert queue.states(late[2]) == ["retrying"] * 2
    rows = gateway.rows("remote/find_settled", jobs=late[2], tokens=[late[1]] * 2)
    assert rows == [], "the worker has lost the claim"


def test_outcome_is_settled_through_any_gateway_while_the_claim_exists(queue, gateway, sessions):
    [claim] = claimed(queue, gateway, sessions, 2)
    other = Gateway(queue)
    other.attach(claim[0])
    assert gateway.settle_claims(claim) == pairs(claim)


def test_statement_fails_if_other_jobs_have_the_token(queue, gateway, sessions):
    """A crash of PostgreSQL can discard a claim and assign its token again."""
    good, reused = claimed(queue, gateway, sessions, 1, 2)
    wrong = (*reused[:2], [reused[2][0], good[2][0]])
    with pytest.raises(psycopg.errors.NotNullViolation):
        gateway.settle_claims(good, wrong)
    assert queue.states([*good[2], *reused[2]]) == ["running"] * 3
    assert gateway.settle_claims(good) == pairs(good)


def test_kind_whose_history_is_not_kept_writes_no_row(queue, gateway, sessions):
    claims = claimed(queue, gateway, sessions, 2, 1)
    assert gateway.settle_claims(*claims, keep=0) == pairs(*claims)
    assert (queue.count("history"), queue.count("running")) == (0, 0)


def test_two_gateways_that_settle_the_same_claims_settle_each_once(queue, gateway, sessions):
    claims = claimed(queue, gateway, sessions, 2, 2, 2)
    other = Gateway(queue)
    with gateway.connection.transaction():
        assert gateway.settle_claims(*claims[:2]) == pairs(*claims[:2])
        other.connection.execute("SET lock_timeout = '10ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.settle_claims(*claims)
    assert other.settle_claims(*claims) == pairs(claims[2])
    assert queue.count("history") == 6
