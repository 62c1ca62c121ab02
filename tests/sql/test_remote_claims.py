"""One statement claims jobs for many waiting Ready messages: which sessions get jobs, and which get none."""

from __future__ import annotations

import json

import psycopg
import pytest

from jobherd import sql
from jobherd.workers.database.wire import Wire
from jobherd.workers.job.row import JobRow, claimed_jobs
from tests.support.queue import Queue
from tests.support.remote import Gateway, RemoteSession


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def gateway(queue):
    return Gateway(queue)


@pytest.fixture
def sessions(gateway):
    return [gateway.open(worker=name) for name in "abc"]


def test_jobs_are_dealt_in_turn_and_each_ready_gets_its_own_claim(queue, gateway, sessions):
    one, two, three = sessions
    jobs = queue.enqueue_many("a:b", 10)
    got = gateway.claim((one, 3), (two, 1), (three, 2), (one, 2))
    assert [(dealt.ready, dealt.jobs) for dealt in got] == [
        (1, [jobs[0], jobs[4], jobs[7]]),
        (2, [jobs[1]]),
        (3, [jobs[2], jobs[5]]),
        (4, [jobs[3], jobs[6]]),
    ]
    assert len({dealt.token for dealt in got}) == 4
    assert gateway.held(one) == {got[0].token: got[0].jobs, got[3].token: got[3].jobs}
    assert gateway.held(two) == {got[1].token: got[1].jobs}
    assert queue.count("ready") == 2


def test_few_jobs_are_spread_one_to_each_ready(queue, gateway, sessions):
    jobs = queue.enqueue_many("a:b", 2)
    assert [(dealt.ready, dealt.jobs) for dealt in gateway.claim(*((one, 8) for one in sessions))] == [
        (1, [jobs[0]]),
        (2, [jobs[1]]),
    ]


def test_jobs_are_dealt_in_the_order_of_their_priority(queue, gateway, sessions):
    low, first, urgent = queue.enqueue("a:b", priority=5), queue.enqueue("a:b"), queue.enqueue("a:b", priority=-1)
    got = gateway.claim((sessions[0], 2), (sessions[1], 2))
    assert [dealt.jobs for dealt in got] == [[urgent, low], [first]]


def test_claim_slots_returns_the_rows_of_claim_jobs_and_the_ready(queue, gateway, sessions):
    options = {"queue": "q", "expires_at": "2999-01-01", "tenant": "acme", "timeout": 3.0, "max_attempts": 2}
    queue.enqueue("a:b", '{"n": 1}', **options)
    queue.enqueue("a:c", "{}", queue="q", payload_bytes=b"\0x")
    wire = Wire(gateway.connection, "jobherd", prepared=True)
    child = queue.child()
    with queue.connection.transaction(force_rollback=True):
        local = claimed_jobs(queue.connection.execute(queue.text("claim/claim_jobs"), child.parameters(10)).fetchall())
    remote = wire.exchange(
        ("remote/claim_slots", {"supervisor": gateway.supervisor, **gateway.slots((sessions[0], 10))})
    )[0]
    assert [row[-1] for row in remote] == [1, 1]
    assert [*gateway.claim_raw((sessions[0], 1))] == []
    changes = {JobRow._fields.index(name) for name in ("token", "good_for", "waited")}
    for ours, theirs in zip(remote, local, strict=True):
        assert [value for place, value in enumerate(ours[:-1]) if place not in changes] == [
            value for place, value in enumerate(theirs) if place not in changes
        ]
    job = JobRow._make(remote[0][:-1])
    assert (job.queue, job.attempts, job.more, json.loads(job.extras)["tenant"]) == ("q", 1, False, "acme")


@pytest.mark.parametrize("why", ["attached", "lease", "another session's number", "reclaimed", "a supervisor"])
def test_ready_of_a_session_not_served_here_gets_no_job_and_the_others_get_all(queue, gateway, sessions, why):
    stale, mine, _ = sessions
    jobs = queue.enqueue_many("a:b", 3)
    match why:
        case "attached":
            Gateway(queue).attach(stale)
        case "lease":
            gateway.renew(stale, lease=0.0)
        case "another session's number":
            stale = RemoteSession(stale.id, stale.child, 2)
        case "reclaimed":
            queue.supervisor().reclaim(dead=[stale.id])
        case _:
            stale = RemoteSession(gateway.supervisor, stale.child, 1)
    rows = [(row["token"], row["id"], row["ready"]) for row in gateway.claim_raw((stale, 3))]
    assert rows == ([] if why == "lease" else [(-1, None, 1)])
    got = gateway.claim((stale, 3), (mine, 3))
    assert [(dealt.ready, dealt.jobs) for dealt in got] == [(2, jobs)]
    assert gateway.held(stale) == {}
    rows = gateway.claim_raw((mine, 1), (stale, 3))
    assert [(row["token"], row["ready"]) for row in rows] == ([] if why == "lease" else [(-1, 2)]), (
        "also if no job is left"
    )


def test_gateway_whose_supervisor_has_no_lease_claims_nothing(queue, gateway, sessions):
    queue.enqueue("a:b")
    queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 s' WHERE id = %s", gateway.supervisor)
    assert gateway.claim_raw((sessions[0], 1)) == []
    gateway.supervisor = sessions[1].id
    assert gateway.claim_raw((sessions[0], 1)) == [], "a session is not a gateway"


def test_job_that_must_run_alone_shares_no_claim(queue, gateway, sessions):
    jobs = queue.enqueue_many("a:b", 7)
    for place in (2, 3, 4, 5):
        queue.run("UPDATE jobherd.ready SET alone = true WHERE id = %s", jobs[place])
    readys = [(one, 4) for one in sessions]
    assert [dealt.jobs for dealt in gateway.claim(*readys)] == [[jobs[0]], [jobs[1]]]
    assert [dealt.jobs for dealt in gateway.claim(*readys)] == [[jobs[2]], [jobs[3]], [jobs[4]]]
    assert [dealt.jobs for dealt in gateway.claim(*readys)] == [[jobs[5]]]
    assert [dealt.jobs for dealt in gateway.claim(*readys)] == [[jobs[6]]]


def test_one_megabyte_of_payloads_ends_the_claims_of_all_sessions(queue, gateway, sessions):
    queue.run("ALTER TABLE jobherd.ready ALTER payload SET STORAGE EXTERNAL")
    half, whole = json.dumps("x" * 600_000), json.dumps("x" * 2_000_000)
    small, *more = [queue.enqueue("a:b", payload) for payload in ("{}", half, half, half, whole, "{}")]
    readys = [(one, 4) for one in sessions]
    found = []
    for _ in range(4):
        found.append([job for dealt in gateway.claim(*readys) for job in dealt.jobs])
    assert found == [[small, more[0], more[1]], [more[2]], [more[3]], [more[4]]]


def test_one_statement_claims_at_most_500_jobs(queue, gateway, sessions):
    queue.enqueue_many("a:b", 700)
    got = gateway.claim(*((one, 300) for one in sessions))
    assert [len(dealt.jobs) for dealt in got] == [167, 167, 166]


def test_more_is_true_if_the_queue_has_further_jobs(queue, gateway, sessions):
    queue.enqueue_many("a:b", 3)
    assert {row["more"] for row in gateway.claim_raw((sessions[0], 2))} == {True}
    assert {row["more"] for row in gateway.claim_raw((sessions[0], 2))} == {False}


def test_two_gateways_never_claim_the_same_job(queue, gateway, sessions):
    queue.enqueue_many("a:b", 20)
    other = Gateway(queue)
    theirs = other.open(worker="d")
    with gateway.connection.transaction():
        mine = gateway.claim((sessions[0], 5), (sessions[1], 5))
        got = other.claim((theirs, 20))
    assert sum(len(dealt.jobs) for dealt in mine) == len(got[0].jobs) == 10
    assert not set(got[0].jobs) & {job for dealt in mine for job in dealt.jobs}


def test_claim_returns_the_queue_whose_rows_are_locked(queue, gateway, sessions):
    held, free = queue.enqueue("a:b", queue="held", priority=-1), queue.enqueue("a:b", queue="free")
    with psycopg.connect(queue.dsn) as console:
        console.execute("SELECT FROM jobherd.ready WHERE id = %s FOR UPDATE", [held])
        [row] = gateway.claim_raw((sessions[0], 2))
        assert (row["id"], row["queue"], row["ready"]) == (None, "held", None)
        assert [dealt.jobs for dealt in gateway.claim((sessions[0], 2), avoided=["held"])] == [[free]]
    assert queue.count("running") == 1


def test_queues_are_served_in_the_given_order_without_paused_ones(queue, gateway, sessions):
    slow, fast, held = (queue.enqueue("a:b", queue=name) for name in ("slow", "fast", "held"))
    queue.run("SELECT jobherd.pause('held')")
    served = {"served": ["held", "fast", "slow"]}
    assert [dealt.jobs for dealt in gateway.claim((sessions[0], 9), **served)] == [[fast]]
    assert [dealt.jobs for dealt in gateway.claim((sessions[0], 9), **served)] == [[slow]]
    assert gateway.claim((sessions[0], 9), **served) == []
    assert queue.state(held) == "ready"


@pytest.mark.parametrize(
    "gate",
    ["pause(kind => 'a:b')", "pause('*')", "set_limit('default', 1)", "set_limit(kind => 'x:y', max_running => 1)"],
)
def test_pause_or_limit_diverts_to_claim_gated_which_claims_for_the_session(queue, gateway, sessions, gate):
    job = queue.enqueue("a:c")
    queue.run(f"SELECT jobherd.{gate}")
    [row] = gateway.claim_raw((sessions[0], 2))
    assert (row["id"], row["queue"]) == (None, None)
    nothing = dict.fromkeys(
        (
            "served",
            "turns",
            "tiers",
            "avoided",
            "kinds",
            "shares",
            "limited",
            "limits",
            "left_queue",
            "left_kind",
            "short",
        )
    )
    rows = gateway.rows(
        "claim/claim_gated",
        **nothing | {"supervisor": sessions[0].id, "child": sessions[0].child, "wanted": 2, "narrowed": False},
    )
    assert [row["id"] for row in rows] == ([] if gate == "pause('*')" else [job])


@pytest.mark.parametrize(
    ("condition", "given"),
    [
        ("of_kinds", {"only_kinds": ["a:c"]}),
        ("of_tenants", {"only_tenants": ["acme", "b"]}),
        ("not_of_kinds", {"not_kinds": ["a:b"]}),
    ],
)
def test_claim_is_narrowed_by_kinds_and_tenants(queue, gateway, sessions, condition, given):
    queue.enqueue("a:b")
    queue.enqueue("a:b", tenant="else")
    fits = [queue.enqueue("a:c", tenant="acme"), queue.enqueue("a:c", tenant="b")]
    claim = {"by": sql.narrow("remote/claim_slots", condition)}
    assert [dealt.jobs for dealt in gateway.claim((sessions[0], 9), **claim, **given)] == [fits]
    [row] = gateway.claim_raw((sessions[0], 9), **claim, **given)
    assert (row["id"], row["queue"]) == (None, "default"), "the queue has jobs, but none that match"


def test_gated_claim_is_narrowed_by_tenants(queue, gateway, sessions):
    queue.enqueue("a:b")
    fits = queue.enqueue("a:b", tenant="acme")
    queue.run("SELECT jobherd.set_limit('default', 5)")
    nothing = dict.fromkeys(
        (
            "served",
            "turns",
            "tiers",
            "avoided",
            "kinds",
            "shares",
            "limited",
            "limits",
            "left_queue",
            "left_kind",
            "short",
        )
    )
    given = {
        "supervisor": sessions[0].id,
        "child": sessions[0].child,
        "wanted": 1,
        "narrowed": True,
        "only_tenants": ["acme"],
    }
    rows = gateway.rows(sql.narrow("claim/claim_gated", "of_tenants"), **nothing | given)
    assert [row["id"] for row in rows] == [fits]


def test_claim_can_start_after_a_given_position_in_the_queue(queue, gateway, sessions):
    jobs = queue.enqueue_many("a:b", 4)
    given = {"past_queue": "default", "past_priority": 0, "past_id": jobs[1], "back": False}
    got = gateway.claim((sessions[0], 2), (sessions[1], 2), by=sql.seeking("remote/claim_slots"), **given)
    assert [dealt.jobs for dealt in got] == [[jobs[2]], [jobs[3]]]


@pytest.mark.parametrize(("short", "waits"), [(None, "on"), (["a:b"], "on"), (["a:b", "a:c"], "off")])
def test_claim_waits_for_its_fsync_unless_all_its_jobs_are_short(queue, gateway, sessions, short, waits):
    queue.enqueue("a:b")
    queue.enqueue("a:c")
    with gateway.connection.transaction():
        assert len(gateway.claim((sessions[0], 1), (sessions[1], 1), short=short)) == 2
        assert gateway.connection.execute("SHOW synchronous_commit").fetchone() == (waits,)


@pytest.mark.parametrize("setting", ["hashjoin", "hashagg", "material", "sort", "mergejoin", "nestloop", "indexscan"])
def test_dealing_does_not_depend_on_the_query_plan(queue, gateway, sessions, setting):
    jobs = queue.enqueue_many("a:b", 9)
    gateway.connection.execute(f"SET enable_{setting} = off")
    assert [dealt.jobs for dealt in gateway.claim((sessions[0], 2), (sessions[1], 2))] == [
        [jobs[0], jobs[2]],
        [jobs[1], jobs[3]],
    ]
    assert queue.count("ready") == 5


def explain(gateway, sessions):
    """Return the shape of the plan and the buffers it touched. The transaction is rolled back."""
    with gateway.connection.transaction(force_rollback=True):
        readys = [(sessions[number % 3], 8) for number in range(16)]
        given = {"supervisor": gateway.supervisor, **gateway.slots(*readys)}
        text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + gateway.queue.text("remote/claim_slots")
        plan = gateway.connection.execute(text, given).fetchone()[0][0]["Plan"]

    def shape(node):
        return (node["Node Type"], node.get("Index Name"), [shape(child) for child in node.get("Plans", [])])

    return shape(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_claim_costs_the_same_with_300_and_with_200_000_ready_jobs(queue, gateway, sessions):
    """The cost is measured right after the bulk load, without any ANALYZE, and after one."""
    queue.enqueue_many("a:b", 300)
    queue.run("VACUUM jobherd.ready")
    small = explain(gateway, sessions)
    queue.enqueue_many("a:b", 199_700)
    large = explain(gateway, sessions)
    queue.run("ANALYZE")
    analyzed = explain(gateway, sessions)
    assert analyzed[0] == large[0] == small[0]
    assert large[1] <= small[1] + 60  # the index is a level or two deeper; nothing else may grow
    assert analyzed[1] <= small[1] + 60
