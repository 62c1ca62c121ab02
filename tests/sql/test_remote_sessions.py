"""Sessions of remote workers: their leases, and the fences between gateways, clients and supervisors."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.support.patience import LIMIT
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
def session(gateway):
    return gateway.open()


def expire(queue, session):
    queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 s' WHERE id = %s", session.id)


def exists(queue, session):
    return queue.run("SELECT EXISTS (SELECT FROM jobherd.supervisors WHERE id = %s)", session.id) == [(True,)]


def test_session_is_stored_as_a_supervisor_with_one_child(queue, gateway, session):
    [row] = queue.run(
        "SELECT s.host, s.machine, s.via, s.attached, s.principal, s.version, c.kind, c.incarnation, c.backend_pid"
        " FROM jobherd.supervisors s JOIN jobherd.children c ON c.supervisor = s.id WHERE s.id = %s AND c.id = %s",
        session.id, session.child,
    )  # fmt: skip
    assert row == ("w", "remote", gateway.supervisor, 1, "team-a", "py/1", "remote", 1, 0)


@pytest.mark.parametrize("columns", ["via = 1", "attached = 1", "principal = 'a'"])
def test_supervisor_with_only_some_columns_of_a_session_is_rejected(queue, gateway, columns):
    with pytest.raises(psycopg.errors.CheckViolation, match="supervisors_session_has_a_gateway"):
        queue.run(f"UPDATE jobherd.supervisors SET {columns} WHERE id = %s", gateway.supervisor)


def test_gateway_without_a_lease_cannot_open_resume_or_renew_but_can_end_sessions(queue, gateway, session):
    queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 s' WHERE id = %s", gateway.supervisor)
    assert gateway.open() is None
    assert gateway.attach(session) is None
    assert gateway.served(session) == [{"session": session.id, "renewed": False}]
    assert gateway.renew(session, lease=0.0) == [session.id]


def test_session_cannot_open_or_resume_a_session(queue, gateway, session):
    gateway.supervisor = session.id
    assert gateway.open() is None
    assert gateway.attach(session) is None


def test_only_the_gateway_that_serves_a_session_renews_it(queue, gateway, session):
    other, here = gateway.open(worker="x"), Gateway(queue)
    resumed = here.attach(session)
    assert (resumed.id, resumed.child, resumed.attached) == (session.id, session.child, 2)
    assert gateway.renew(session, other) == [other.id]
    assert here.renew(resumed) == [session.id]
    assert queue.run("SELECT via FROM jobherd.supervisors WHERE id = %s", session.id) == [(here.supervisor,)]


def test_renewal_moves_the_leases_of_its_sessions_only(queue, gateway, session):
    other = gateway.open(worker="x")
    for one in (session, other):
        expire(queue, one)
    before = queue.run("SELECT lease_until FROM jobherd.supervisors WHERE id = %s", gateway.supervisor)
    assert gateway.renew(session, other, RemoteSession(gateway.supervisor, 0, 1)) == [session.id, other.id]
    assert queue.run(
        "SELECT count(*) FROM jobherd.supervisors WHERE via IS NOT NULL AND lease_until > now() + interval '9 min'"
    ) == [(2,)]
    assert queue.run("SELECT lease_until FROM jobherd.supervisors WHERE id = %s", gateway.supervisor) == before


def test_only_the_client_that_opened_a_session_resumes_it(queue, gateway, session):
    assert Gateway(queue).attach(session, principal="team-b") is None
    assert gateway.renew(session) == [session.id], "a rejected resume does not move the fence"


def test_supervisor_cannot_be_resumed_as_a_session(queue, gateway):
    assert gateway.attach(RemoteSession(gateway.supervisor, 0, 1), principal="team-a") is None


def test_expired_session_is_reclaimed_with_its_jobs(queue, gateway, session):
    jobs = queue.enqueue_many("a:b", 3)
    claim = gateway.claim_one(session, 3)
    assert gateway.held(session) == {claim.token: jobs}
    assert gateway.renew(session, lease=0.0) == [session.id]
    row = gateway.rows("recover/reclaim_supervisors", dead=[], lease=0.0, patient=True, clock=None)[0]
    assert row == {"supervisors": 0, "jobs": 3, "hosts": "w", "sessions": 1}
    assert not exists(queue, session)
    assert queue.states(jobs) == ["retrying"] * 3
    said = "its remote worker was lost: the lease of its session expired"
    assert queue.run("SELECT DISTINCT outcome, ran_on, error FROM jobherd.attempts") == [("lost", "w via test", said)]
    assert queue.run("SELECT bool_and(alone) FROM jobherd.ready") == [(True,)]
    assert gateway.settle(session, claim.token, jobs) == [], "a late outcome is rejected"
    assert gateway.renew(session) == []
    assert gateway.attach(session) is None


def test_supervisors_and_sessions_are_reclaimed_together(queue, gateway, session):
    """Here a job of each has the same id: one of the two returns under a new id."""
    dead = queue.child()
    theirs, ours = queue.enqueue_many("a:b", 2)
    dead.claim(1)
    gateway.claim_one(session)
    queue.run("UPDATE jobherd.running SET jobs[1].id = %s WHERE child = %s", theirs, session.child)
    assert queue.supervisor().reclaim(dead=[dead.supervisor, session.id]) == (1, 2)
    assert queue.run("SELECT id = %s, last_error ->> 'message' FROM jobherd.ready ORDER BY 2", theirs) in (
        [(False, "its remote worker was lost"), (True, "its supervisor was lost")],
        [(True, "its remote worker was lost"), (False, "its supervisor was lost")],
    )
    assert ours > theirs


def test_session_resumed_in_time_keeps_its_jobs(queue, gateway, session):
    job = queue.enqueue("a:b")
    claim = gateway.claim_one(session)
    gateway.renew(session, lease=0.0)
    resumed = Gateway(queue).attach(session)
    assert queue.supervisor().reclaim() == (0, 0)
    assert gateway.held(resumed) == {claim.token: [job]}
    assert gateway.settle(resumed, claim.token, [job]) == [job]


def test_reclaiming_the_gateways_supervisor_leaves_its_sessions_their_jobs(queue, gateway, session):
    job = queue.enqueue("a:b")
    claim = gateway.claim_one(session)
    assert queue.supervisor().reclaim(dead=[gateway.supervisor]) == (1, 0)
    resumed = Gateway(queue).attach(session)
    assert gateway.held(resumed) == {claim.token: [job]}


def test_session_without_a_lease_claims_nothing(queue, gateway, session):
    queue.enqueue("a:b")
    expire(queue, session)
    with pytest.raises(AssertionError, match="nothing was claimed"):
        gateway.claim_one(session)


def test_held_session_cannot_be_resumed_until_the_transaction_ends(queue, gateway, session):
    here = Gateway(queue)
    here.connection.execute("SET lock_timeout = '10ms'")
    with gateway.connection.transaction():
        gateway.hold(session)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            here.attach(session)
    assert here.attach(session).attached == 2


@pytest.mark.parametrize("why", ["resumed elsewhere", "reclaimed", "a supervisor"])
def test_gateway_that_does_not_serve_a_session_cannot_hold_it(queue, gateway, session, why):
    job = queue.enqueue("a:b")
    claim = gateway.claim_one(session)
    if why == "resumed elsewhere":
        Gateway(queue).attach(session)
    elif why == "reclaimed":
        queue.supervisor().reclaim(dead=[session.id])
    else:
        session.id = gateway.supervisor
    with (
        pytest.raises(psycopg.Error, match="another gateway serves session") as refused,
        gateway.connection.transaction(),
    ):
        gateway.hold(session)
        gateway.settle(session, claim.token, [job], "retry")
    assert refused.value.sqlstate == "JHSES"
    assert gateway.held(session).get(claim.token, []) == ([] if why == "reclaimed" else [job])


def test_resumed_session_releases_claims_that_its_worker_never_received(queue, gateway, session):
    jobs = queue.enqueue_many("a:b", 2)
    heard, unheard = gateway.claim_one(session), gateway.claim_one(session)
    here = Gateway(queue)
    resumed = here.attach(session)
    with here.connection.transaction():
        here.hold(resumed)
        rows = here.rows("recover/requeue_unacknowledged", child=resumed.child, known_tokens=[heard.token])
    assert [row["id"] for row in rows] == unheard.jobs == jobs[1:]
    assert queue.run("SELECT id, attempts, alone FROM jobherd.ready") == [(jobs[1], 0, False)]


def test_resumed_session_releases_jobs_it_does_not_hold_and_lists_those_it_holds(queue, gateway, session):
    jobs = queue.enqueue_many("a:b", 5, timeout=7.0)
    received, unheard = gateway.claim_one(session, 3), gateway.claim_one(session)
    theirs = gateway.open(worker="x")
    other = gateway.claim_one(theirs)
    held = {"jobs": [jobs[0], jobs[2], jobs[3]], "tokens": [received.token, received.token, 0]}
    here = Gateway(queue)
    with here.connection.transaction():
        resumed = here.attach(session)
        rows = here.rows("remote/release_unheld", child=resumed.child, **held)
        kept = here.rows("remote/find_held", children=[resumed.child])
    assert sorted((row["token"], row["job"]) for row in rows) == sorted(
        [(received.token, jobs[1]), (unheard.token, jobs[3])]
    )
    assert [(row["token"], row["job"]) for row in kept] == [(received.token, jobs[0]), (received.token, jobs[2])]
    assert [kept[0][name] for name in ("child", "kind", "attempts", "max_attempts", "timeout")] == [
        session.child,
        "a:b",
        1,
        None,
        7.0,
    ]
    assert 0 <= kept[0]["held_for"] < 60
    assert queue.run("SELECT id, attempts, alone FROM jobherd.ready ORDER BY id") == [
        (jobs[1], 0, False),
        (jobs[3], 0, False),
    ]
    assert gateway.held(theirs) == {other.token: [jobs[4]]}
    assert here.rows("remote/release_unheld", child=resumed.child, **held) == []


def test_reclaim_does_not_wait_for_a_session_that_a_stopped_gateway_holds(queue, gateway, session):
    """Otherwise nothing else in the fleet would be reclaimed while that gateway is stopped."""
    other, reclaiming = gateway.open(worker="x"), Gateway(queue)
    reclaiming.connection.execute("SET lock_timeout = '10ms'")
    with gateway.connection.transaction():
        gateway.hold(session)
        expire(queue, other)
        row = reclaiming.rows("recover/reclaim_supervisors", dead=[session.id], lease=0.0, patient=True, clock=None)[0]
        assert (row["supervisors"], row["sessions"]) == (0, 1)
    assert exists(queue, session)
    assert not exists(queue, other)


def test_session_is_not_counted_as_a_supervisor(queue, gateway, session):
    """Commands and pages that list supervisors send them commands, which no session answers."""
    job = queue.enqueue("a:b")
    claim = gateway.claim_one(session)
    assert [row["id"] for row in gateway.rows("observe/list_supervisors")] == [gateway.supervisor]
    assert [row["id"] for row in gateway.rows("observe/list_fleet", most=10)] == [gateway.supervisor]
    fleet = {"supervisors": 1, "expired": 0, "versions": ["0"], "workers": 0, "remote": 1, "waiting": False}
    assert gateway.rows("doctor/show_fleet") == [fleet]
    expire(queue, session)
    assert gateway.rows("doctor/show_fleet") == [fleet | {"remote": 0}]
    gateway.renew(session)
    [runner] = gateway.rows("observe/find_runner", id=job)
    assert (runner["state"], runner["child"], runner["supervisor"]) == ("running", session.child, None)
    assert runner["remote"] == "w via test"
    assert gateway.rows("dashboard/show_output", id=job, token=claim.token) == []
    assert gateway.rows("lease/find_host_supervisors", machine="test") == []
    queue.run("DELETE FROM jobherd.supervisors WHERE via IS NULL")
    assert gateway.rows("dashboard/show_first_steps")[0]["supervised"] is False


def test_fleet_command_to_a_session_is_rejected(queue, gateway, session):
    """No process would run the command, and the caller would wait for the answer."""
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"supervisor {session.id} is not there"):
        queue.run("SELECT jobherd.send_fleet_command(%s, 'drain')", session.id)
    assert queue.run("SELECT jobherd.send_fleet_command(%s, 'drain')", gateway.supervisor)


def test_running_job_shows_its_remote_worker_and_the_host_of_the_gateway(queue, gateway, session):
    job = queue.enqueue("a:b")
    gateway.claim_one(session)
    [shown] = gateway.rows("top/list_running", most=9)
    assert (shown["host"], shown["slot"]) == ("w", None), "not as w/0, slot 0 of a host"
    where = "SELECT ran_on FROM jobherd.jobs WHERE id = %s"
    assert queue.run(where, job) == [("w via test",)]
    queue.run("DELETE FROM jobherd.supervisors WHERE via IS NULL")
    assert queue.run(where, job) == [("w",)], "its supervisor has exited, and the worker may resume elsewhere"


def test_list_of_sessions_shows_their_connection_and_running_jobs(queue, gateway, session):
    idle, away = gateway.open(worker="idle"), gateway.open(worker="z")
    first = queue.enqueue_many("a:b", 3)[0]
    gateway.claim_one(session, 2)
    gateway.claim_one(session)
    queue.run(
        "UPDATE jobherd.supervisors SET beat_at = beat_at - interval '400 s', lease_until = lease_until - interval '400 s'"
        " WHERE id = %s",
        away.id,
    )

    def listed():
        rows = gateway.rows("observe/list_sessions", most=10)
        return {row["id"]: (row["worker"], row["client"], row["via"], row["connected"], row["tasks"]) for row in rows}

    here = gateway.supervisor
    assert listed() == {
        session.id: ("w", "py/1", here, True, 3),
        idle.id: ("idle", "py/1", here, True, 0),
        away.id: ("z", "py/1", here, False, 0),
    }
    row = next(row for row in gateway.rows("observe/list_sessions", most=10) if row["id"] == session.id)
    assert (row["job"], row["job_kind"], row["held_for"] >= 0) == (first, "a:b", True)
    gateway.renew(session, lease=0.0)
    assert listed()[session.id][3] is False, "its stream broke and was not resumed"
    queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 s' WHERE via IS NULL")
    assert listed()[idle.id][3] is False, "a supervisor without a lease renews no session"


def test_two_gateways_that_renew_the_same_sessions_do_not_deadlock(queue, gateway):
    sessions = [gateway.open(worker=str(number)) for number in range(8)]
    stale = Gateway(queue)
    found = []

    def renew(number):
        here = gateway if number else stale
        for _ in range(40):
            found.append(len(here.renew(*(sessions if number else reversed(sessions)))))

    threads = [threading.Thread(target=renew, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert found == [8] * 80


def test_find_settled_returns_settled_attempts_but_not_lost_ones(queue, gateway, session):
    done, failed, again, expired, lost, running = queue.enqueue_many("a:b", 6)
    tokens = {}
    for job in (done, failed, again, expired, lost, running):
        claim = gateway.claim_one(session)
        assert claim.jobs == [job]
        tokens[job] = claim.token
    gateway.settle(session, tokens[done], [done])
    gateway.settle(session, tokens[failed], [failed], "failed", errors="e", codes="E")
    gateway.settle(session, tokens[again], [again], "retry", errors="e", codes="E", delays=60.0)
    gateway.settle(session, tokens[expired], [expired], "retry", errors="e", codes="LEASE_EXPIRED", delays=60.0)
    queue.run(
        "SELECT jobherd.requeue(ARRAY[%s::bigint], ARRAY[%s::bigint], lost => true, message => 'm')",
        session.child,
        tokens[lost],
    )

    def found(pairs):
        rows = gateway.rows("remote/find_settled", jobs=list(pairs), tokens=list(pairs.values()))
        return {row["job"]: row["token"] for row in rows}

    assert found(tokens) == {job: tokens[job] for job in (done, failed, again)}
    assert found({done: tokens[again], again: tokens[done]}) == {}


def test_cancels_are_found_only_by_the_gateway_that_serves_the_session(queue, gateway, session):
    jobs = queue.enqueue_many("a:b", 2)
    claim = gateway.claim_one(session, 2)
    local = queue.child()
    theirs = queue.enqueue("a:b")
    local.claim(1)
    assert gateway.rows("remote/find_session_cancels") == []
    for job in (jobs[1], theirs):
        queue.cancel(job)
    wanted = [{"session": session.id, "token": claim.token, "job": jobs[1]}]
    assert gateway.rows("remote/find_session_cancels") == wanted
    assert gateway.rows("control/find_cancels") == []
    here = Gateway(queue)
    here.attach(session)
    assert gateway.rows("remote/find_session_cancels") == []
    assert here.rows("remote/find_session_cancels") == wanted


class Extended:
    """A session with two running jobs, and another gateway that receives requests to extend them."""

    def __init__(self, queue, gateway, session):
        self.gateway, self.session, self.here = gateway, session, Gateway(queue)
        self.jobs = queue.enqueue_many("a:b", 2)
        self.token = gateway.claim_one(session, 2).token

    def ask(self, jobs, token=None, *, extend=60.0, principal="team-a"):
        tokens = [token or self.token] * len(jobs)
        rows = self.here.rows(
            "remote/store_extension",
            session=self.session.id,
            principal=principal,
            jobs=jobs,
            tokens=tokens,
            extend=extend,
            lease=30.0,
        )
        return [row["job"] for row in rows]

    def take(self, session=None):
        one = session or self.session
        rows = self.gateway.rows("remote/take_extensions", sessions=[one.id], attached=[one.attached])
        return {(row["session"], row["token"], row["job"]): row["seconds"] for row in rows}


@pytest.fixture
def extended(queue, gateway, session):
    return Extended(queue, gateway, session)


def test_extension_sent_to_another_gateway_is_read_once_by_the_serving_gateway(extended):
    one, two = extended.jobs
    assert sorted(extended.ask([one, two])) == [one, two]
    assert extended.ask([one], extend=5.0) == [one]
    stale = RemoteSession(extended.session.id, extended.session.child, 7)
    assert extended.take(stale) == {}
    taken = extended.take()
    assert set(taken) == {(extended.session.id, extended.token, job) for job in (one, two)}
    assert all(50.0 < seconds <= 60.0 for seconds in taken.values()), "never shortened"
    assert extended.take() == {}


def test_extension_of_a_job_that_the_session_does_not_hold_is_not_stored(queue, extended):
    one, two = extended.jobs
    extended.gateway.settle(extended.session, extended.token, [one])
    assert extended.ask([one, two]) == [two]
    assert extended.ask([two], extended.token + 1) == [None]
    assert extended.ask([two], principal="team-b") == []
    assert queue.run("SELECT job FROM jobherd.extensions") == [(two,)]


def test_heartbeat_at_another_gateway_renews_the_lease_and_never_shortens_it(queue, extended):
    lease = (
        "SELECT round(extract(epoch FROM lease_until - clock_timestamp()) / 10) FROM jobherd.supervisors WHERE id = %s"
    )
    assert extended.ask([]) == [None]
    assert queue.run(lease, extended.session.id) == [(60,)]
    expire(queue, extended.session)
    assert extended.ask([], principal="team-b") == []
    assert extended.ask([]) == [None]
    assert queue.run(lease, extended.session.id) == [(3,)]


def test_extensions_are_deleted_when_they_expire_or_their_session_is_reclaimed(queue, extended):
    one, two = extended.jobs
    extended.ask([one])
    queue.run("UPDATE jobherd.extensions SET expires_at = now() - interval '1 s'")
    extended.ask([two])
    assert queue.run("SELECT job FROM jobherd.extensions") == [(two,)]
    queue.supervisor().reclaim(dead=[extended.session.id])
    assert queue.count("extensions") == 0
