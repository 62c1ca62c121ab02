"""A supervisor registers, renews its lease and receives its own notifications.

The session is real; each test passes the time.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time

import psycopg
import pytest

from jobherd import sql
from jobherd.supervisor.database.cancels import Cancels
from jobherd.supervisor.database.connection import DatabaseConnection, Link
from jobherd.supervisor.database.dead_on_host import HostSupervisor, kill_children_of_dead_supervisors
from jobherd.supervisor.database.ended_children import EndedChildren
from jobherd.supervisor.database.identity import identity
from jobherd.supervisor.database.lease import ECHO_PATIENCE, Lease
from jobherd.supervisor.database.notifications import Rejected
from jobherd.supervisor.database.reclaim import Reclaim
from jobherd.supervisor.database.requests import Request
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.system.procfs import started
from tests.support.network import Network
from tests.support.patience import LIMIT
from tests.support.queue import Child, Queue
from tests.support.remote import Gateway

LEASE = 15.0


class Parent:
    """A supervisor's session and registration; tests call its steps."""

    def __init__(self, dsn):
        self.db = DatabaseConnection(
            dsn, schema="jobherd", application_name="parent", retry_initial=0.05, retry_max=1.0
        )
        self.slot_table, self.control = SlotTable(Limits()), ControlBlock()
        self.cancels = Cancels(self.db, self.slot_table)
        self.reclaim = Reclaim(self.db, self.slot_table, identity())
        self.ended_children = EndedChildren(self.db, self.slot_table)
        self.lease = Lease(
            self.db,
            self.slot_table,
            self.control,
            cancels=self.cancels,
            reclaim=self.reclaim,
            ended_children=self.ended_children,
            me=identity(),
            lease=LEASE,
        )
        self.heard = []
        self.refused = []

    def turn(self, now):
        self.db.step(now)
        self.lease.step(now)
        self.reclaim.step(now)
        self.ended_children.step(now)
        self.cancels.step(now)
        self.db.step(now)
        for note in self.db.notifications:
            self.heard.append(note)
            if note.startswith("@renewal:"):
                self.lease.echoed(note.removeprefix("@renewal:"))
        self.db.notifications.clear()
        self.refused += [event.statement for event in self.db.happened if isinstance(event, Rejected)]
        self.db.happened.clear()

    def until(self, condition, ahead=0.0):
        limit = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < limit, (self.db.link, self.db.trouble)
            self.turn(time.monotonic() + ahead)


@pytest.fixture
def parent(database):
    parent = Parent(database)
    parent.until(lambda: parent.lease.receives_notifications)
    yield parent
    parent.db.close()


def leases(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(
            "SELECT id, lease_until > clock_timestamp(), host FROM jobherd.supervisors ORDER BY id"
        ).fetchall()


@pytest.mark.promise("D14", "D26")
def test_supervisor_registers_and_renews_its_lease(parent, database):
    assert parent.slot_table.supervisor
    assert [(row[0], row[1]) for row in leases(database)] == [(parent.slot_table.supervisor, True)]
    assert parent.lease.renewals >= 1


def test_lease_deadline_counts_from_when_the_renewal_was_sent(parent):
    before = parent.lease.renewals
    sent = time.monotonic() + 100
    parent.turn(sent)
    parent.until(lambda: parent.lease.renewals > before, ahead=100)
    assert sent + LEASE <= parent.control.lease_deadline <= time.monotonic() + 100 + LEASE


def test_session_that_receives_no_notifications_is_replaced(parent):
    """On a half-open connection, statements may still be answered, but notifications do not arrive."""
    parent.until(lambda: parent.db.is_quiet)  # the time jumps by a lease: an open request would time out
    parent.db._exchange.queue.append(Request("unlisten", b"UNLISTEN *", [], lambda answer: None))
    epoch, later = parent.db.epoch, LEASE
    # Wait for a renewal that is answered, but whose notification cannot arrive.
    parent.until(lambda: parent.lease._echo_by < float("inf") and not parent.lease._in_flight, ahead=later)
    assert parent.db.link is Link.UP
    parent.turn(time.monotonic() + later + ECHO_PATIENCE + 1)
    assert parent.db.link is not Link.UP
    assert "does not receive its own notifications" in parent.db.trouble
    parent.until(lambda: parent.db.epoch > epoch and parent.lease.receives_notifications, ahead=later + 10)


def test_jobs_of_a_dead_child_reappearing_after_failover_are_requeued(parent, database):
    """A lagging standby or a restored backup has forgotten the end of the child.

    The supervisor had already requeued the child's jobs; without this, no process would requeue them again.
    """
    with Queue(database) as queue:
        dead, living, mourned, unborn = (Child(queue, parent.slot_table.supervisor, number) for number in (1, 2, 3, 4))
        jobs = queue.enqueue_many("a:b", 4)
        for child in (dead, living, mourned, unborn):
            assert len(child.claim(1)) == 1
        slot, now = next(parent.slot_table.workers()), time.monotonic()
        parent.slot_table.incarnations, parent.slot_table.unrecovered = 3, {3}
        parent.slot_table.on_fork(slot, pid=1, incarnation=2, now=now, started=0, jitter=0.0)
        assert queue.count("children") == 4
        parent.db.lose("the server fails over", now)
        parent.until(lambda: queue.count("children") == 3)
        assert queue.orphans() == [jobs[0]]
        assert queue.states(jobs) == ["retrying", "running", "running", "running"]


def test_unregistered_supervisor_waits_only_for_the_registration(parent, database):
    """A check for cancellations needs a registration. If it were due without one, the loop would spin until the
    supervisor is registered again."""
    slot, now = next(parent.slot_table.workers()), time.monotonic()
    parent.slot_table.on_fork(slot, pid=1, incarnation=1, now=now, started=0, jitter=0.0)
    slot.seen.work = CurrentWork(Phase.RUNNING, 1, 1, 1, started=now - LEASE)
    parent.until(lambda: parent.db.is_quiet)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM jobherd.supervisors")
        parent.until(lambda: parent.lease.underway, ahead=LEASE)
    assert not parent.slot_table.supervisor
    assert parent.lease.wake_at(time.monotonic()) == float("inf"), "only the answer to the registration is awaited"


def test_slow_session_is_kept_while_answers_arrive(parent):
    """The renewal waits behind earlier requests for longer than a notification may take. A new session would be as slow."""
    parent.until(lambda: parent.db.is_quiet)
    epoch, renewals, answers = parent.db.epoch, parent.lease.renewals, []
    parent.lease.receives_notifications = False
    for _ in range(5):
        parent.db.ask("maintenance/find_next_due", {}, answers.append)
    now = time.monotonic() + LEASE
    parent.turn(now)
    assert parent.lease._echo_by < float("inf"), "a renewal waits behind the other requests"
    seen, limit = 0, time.monotonic() + LIMIT
    while not parent.lease.receives_notifications:
        assert time.monotonic() < limit
        if len(answers) > seen:  # one answer, or two that arrived together
            seen, now = len(answers), now + 0.7 * ECHO_PATIENCE
        parent.turn(now)
    assert parent.db.epoch == epoch
    assert parent.lease.renewals == renewals + 1
    assert None not in answers


def test_renewal_that_waits_for_a_lock_does_not_end_the_session(parent, database):
    """The holder is another client, or an earlier session of this supervisor whose commit waits for a missing standby.

    The server rejects each renewal when its lock timeout ends.
    """
    parent.until(lambda: parent.db.is_quiet)
    epoch, renewal = parent.db.epoch, "lease/renew_lease"
    with psycopg.connect(database) as stranger:
        stranger.execute("LOCK TABLE jobherd.supervisors IN EXCLUSIVE MODE")
        parent.lease.change_lease(3.0)  # a renewal is due every second, and each one waits for longer
        most = 0
        limit = time.monotonic() + LIMIT
        while parent.refused.count(renewal) < 2:
            assert time.monotonic() < limit
            parent.turn(time.monotonic())
            most = max(most, [letter.name for letter in parent.db._exchange.queue].count(renewal))
        assert (parent.db.link, parent.db.epoch) == (Link.UP, epoch), parent.db.trouble
        assert most <= 1, "renewals pile up in the queue"
    parent.lease.receives_notifications = False
    parent.until(lambda: parent.lease.receives_notifications)
    assert parent.db.epoch == epoch


def test_supervisor_registers_again_after_a_lost_answer_and_the_first_registration_expires(database):
    with Network(database) as network:
        network.arm("parent", "INTO jobherd.supervisors", where="answered")
        parent = Parent(network.dsn)
        parent.until(lambda: parent.lease.receives_notifications)
        network.wait_hit()
        first, second = (row[0] for row in leases(database))
        assert parent.slot_table.supervisor == second
        with psycopg.connect(database, autocommit=True) as connection:
            renewed = "SELECT beat_at FROM jobherd.supervisors ORDER BY id"
            before, count = connection.execute(renewed).fetchall(), parent.lease.renewals
            parent.until(lambda: parent.db.is_quiet)
            parent.until(lambda: parent.lease.renewals > count, ahead=LEASE)
            after = connection.execute(renewed).fetchall()
        assert (after[0] == before[0], after[1] > before[1]) == (True, True), (
            "the lease of the first registration is not renewed"
        )
        parent.db.close()


def test_full_notification_queue_stops_neither_renewals_nor_the_session(parent, database, caplog):
    """The full queue is simulated. PostgreSQL 17 can really fill it: tests/system/test_full_notifications.py."""
    caplog.set_level("INFO", "jobherd.supervisor")
    parent.until(lambda: parent.db.is_quiet)  # the time jumps: an open request would time out
    epoch, renewals = parent.db.epoch, parent.lease.renewals
    with psycopg.connect(database, autocommit=True) as connection:
        found = connection.execute("SELECT pg_get_functiondef('jobherd.notify(text, text)'::regprocedure)").fetchone()
        connection.execute(found[0].replace("< 0.9", "< 0"))
        parent.until(lambda: parent.lease.renewals > renewals + 1, ahead=LEASE)
        assert not parent.lease.receives_notifications
        assert parent.lease._echo_by == float("inf"), "no notification was sent, so the session must not wait for one"
        connection.execute(found[0])
        parent.until(lambda: parent.db.is_quiet, ahead=LEASE)
        parent.until(lambda: parent.lease.receives_notifications, ahead=2 * LEASE)
    assert parent.db.epoch == epoch
    assert [record.levelname for record in caplog.records if "notification queue" in record.message] == [
        "WARNING",
        "INFO",
    ]


def test_session_without_its_backend_pid_is_replaced_even_after_a_pooled_session(parent, monkeypatch):
    parent.db.setup.pooled = True  # as in the previous session
    sound = sql.numbered
    refused = []

    def refusing(name, schema):
        if name == "session/show_backend" and not refused:
            refused.append(name)
            return "SELECT 1 / 0", ()
        return sound(name, schema)

    monkeypatch.setattr(sql, "numbered", refusing)
    parent.db.lose("as a test wants it", time.monotonic())
    epoch = parent.db.epoch
    parent.until(lambda: parent.db.link is Link.UP and parent.db.epoch > epoch, ahead=1)
    parent.until(lambda: parent.lease._echo_by < float("inf") and parent.db.is_quiet, ahead=1)
    assert refused
    parent.turn(parent.lease._echo_by + 0.1)
    assert parent.db.link is not Link.UP, "the session does not listen, but was kept"
    parent.until(lambda: parent.lease.receives_notifications, ahead=LEASE)


def test_supervisor_registers_again_when_a_renewal_finds_no_registration(parent, database):
    old = parent.slot_table.supervisor
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM jobherd.supervisors")
    parent.until(lambda: parent.slot_table.supervisor not in (0, old), ahead=LEASE)
    assert [row[0] for row in leases(database)] == [parent.slot_table.supervisor]
    assert any("lease was lost" in note for note in parent.slot_table.warnings)


@pytest.mark.promise("A29", "D24", "E14")
def test_jobs_of_an_expired_supervisor_are_reclaimed_and_a_renewing_one_is_kept(parent, database):
    with Queue(database) as queue:
        number = queue.enqueue("a:b")
        expired, beating = queue.child(), queue.supervisor()
        expired.claim(1)
        queue.run(
            "UPDATE jobherd.supervisors SET lease_until = now() - interval '1 hour' WHERE id = %s", expired.supervisor
        )
        # The tests' server and this session are younger than the default lease, so nothing would be reclaimed yet.
        parent.lease._lease = 0.5
        parent.until(lambda: parent.lease.reclaimed == 1, ahead=LEASE)
        assert queue.state(number) == "retrying"
        assert beating.id in [row[0] for row in leases(database)]


def test_jobs_of_an_expired_remote_session_are_reclaimed(parent, database, caplog):
    with Queue(database) as queue:
        gateway = Gateway(queue)
        idle, busy = gateway.open(worker="idle"), gateway.open(worker="busy")
        gateway.renew(idle, lease=0.0)
        parent.lease._lease = 0.5  # the tests' server and the session are younger than the default lease
        parent.until(lambda: idle.id not in [row[0] for row in leases(database)], ahead=LEASE)
        parent.until(lambda: parent.db.is_quiet)
        assert "reclaimed" not in caplog.text, "the idle session had no jobs"
        queue.enqueue_many("a:b", 2)
        gateway.claim((busy, 2))
        gateway.renew(busy, lease=0.0)
        parent.until(lambda: parent.lease.reclaimed == 2, ahead=2 * LEASE)
        assert "2 jobs were reclaimed from 1 remote worker" in caplog.text


def noted(parent):
    """Return a list that gets, for each reclaim from now on, whether expired leases may be reclaimed."""
    asked, ask = [], parent.db.ask

    def noting(name, parameters, *more):
        if name == "recover/reclaim_supervisors":
            asked.append(parameters["patient"])
        ask(name, parameters, *more)

    parent.db.ask = noting
    return asked


def lock(queue, deed):
    """Make the server reject this operation on the table of supervisors, as after a lock timeout, until `unlock`."""
    queue.run(
        "CREATE FUNCTION public.lock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'locked' USING ERRCODE = '57014'; END $$;"
        f"CREATE TRIGGER lock BEFORE {deed} ON jobherd.supervisors FOR EACH STATEMENT EXECUTE FUNCTION public.lock()"
    )


def unlock(queue):
    queue.run("DROP FUNCTION public.lock() CASCADE")


def turned(parent, now, condition):
    """Turn the supervisor at the time `now` until the condition is true and no request is open.

    A request that is open when a test moves the time ahead would time out.
    """
    assert parent.db.is_quiet
    limit = time.monotonic() + LIMIT
    while not (condition() and parent.db.is_quiet):
        assert time.monotonic() < limit, (parent.db.link, parent.db.trouble)
        parent.turn(now)


def by_thirds(parent, asked, now):
    """Have the supervisor renew three times, a third of the lease apart; return the time of the last renewal."""
    for _ in range(3):
        now, seen = now + LEASE / 3, len(asked)
        turned(parent, now, lambda seen=seen: len(asked) > seen)
    return now


def test_new_supervisor_gives_every_other_supervisor_a_whole_lease_to_renew(database):
    """It may have started at the end of an outage, before any other supervisor has reconnected.

    After a failover, the age of the server does not show that.
    """
    parent = Parent(database)
    asked = noted(parent)
    with Queue(database) as queue:
        living = queue.supervisor()
        queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 minute'")
        parent.until(lambda: asked and parent.db.is_quiet)
        assert not any(asked)
        assert living.id in [row[0] for row in leases(database)]
    by_thirds(parent, asked, time.monotonic() + 0.5)
    assert asked[-1]
    parent.db.close()


def test_supervisor_that_registers_late_gives_every_other_supervisor_a_whole_lease(database):
    """Its session was open for longer than a lease, but the table was locked, so no supervisor could renew."""
    parent = Parent(database)
    asked = noted(parent)
    with Queue(database) as queue:
        living = queue.supervisor()
        queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 minute'")
        lock(queue, "INSERT")
        parent.until(lambda: "lease/register_supervisor" in parent.refused and parent.db.is_quiet)
        unlock(queue)
        later = time.monotonic() + 2 * LEASE
        turned(parent, later, lambda: parent.slot_table.supervisor)
        turned(parent, later + LEASE / 2, lambda: asked)
        assert not any(asked)
        assert living.id in [row[0] for row in leases(database)]
    parent.db.close()


def test_every_supervisor_gets_a_whole_lease_after_a_time_without_renewals(parent, database):
    """Session and server stayed up, but a table was locked, or commits waited for a missing standby."""
    parent.until(lambda: parent.db.is_quiet)
    asked = noted(parent)
    now = by_thirds(parent, asked, time.monotonic())
    assert asked[-1], "the supervisor has renewed for a whole lease"
    with Queue(database) as queue:
        living = queue.supervisor()
        queue.run("UPDATE jobherd.supervisors SET lease_until = now() - interval '1 minute' WHERE id = %s", living.id)
        lock(queue, "UPDATE")
        now += LEASE / 3
        turned(parent, now, lambda: "lease/renew_lease" in parent.refused)
        unlock(queue)
        now += LEASE / 2
        asked.clear()
        turned(parent, now, lambda: asked)
        assert asked == [False], "its own lease may have expired, and so may every other"
        assert living.id in [row[0] for row in leases(database)]
    by_thirds(parent, asked, now)
    assert asked[-1]


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_every_supervisor_gets_a_whole_lease_after_the_servers_clock_jumps(parent, database, caplog, jump):
    """After a jump forward, every lease looks expired. After a jump back, leases of dead supervisors last longer."""
    asked = []
    parent.until(lambda: parent.db.is_quiet)  # the requests of the first renewal are answered
    ask = parent.db.ask

    def noting(name, parameters, *more):
        if name == "recover/reclaim_supervisors":
            asked.append((parameters["patient"], parent.lease.reclaimed))
        ask(name, parameters, *more)

    parent.db.ask = noting
    with Queue(database) as queue:
        queue.enqueue("a:b")
        other, living = queue.child(), queue.supervisor()
        other.claim(1)
        when = "now() - interval '1 hour'" if jump > 0 else "now() + interval '1 hour'"
        queue.run(
            f"UPDATE jobherd.supervisors SET beat_at = {when}, lease_until = {when} WHERE id = %s", other.supervisor
        )
        parent.lease._lease = 0.5
        parent.reclaim._clock._ahead = tuple(
            side - jump for side in parent.reclaim._clock._ahead
        )  # as if the latest renewal had been before the jump
        parent.lease._renew_at = 0.0
        parent.until(lambda: parent.lease.reclaimed == 1)
        assert asked[0] == (False, 0), "a supervisor that renewed before the jump may be alive"
        assert asked[-1][0]
        assert living.id in [row[0] for row in leases(database)]
    assert jumped(caplog) == pytest.approx(jump, abs=LIMIT)


def jumped(caplog):
    """Return the seconds that the log names; they include the round trip of the request."""
    found = re.search(r"the database's clock has jumped by ([+-]\d+)", caplog.text)
    assert found, caplog.text
    return int(found[1])


def test_clock_jump_before_the_first_renewal_is_detected(database, caplog):
    """Without this, a new supervisor treats every other lease as expired."""
    parent = Parent(database)
    asked = []
    ask = parent.db.ask

    def noting(name, parameters, *more):
        if name == "recover/reclaim_supervisors":
            asked.append(parameters["patient"])
        ask(name, parameters, *more)

    parent.db.ask = noting
    try:
        parent.until(lambda: parent.slot_table.supervisor)
        assert parent.lease.renewals == 0
        parent.reclaim._clock._ahead = tuple(side - 3600.0 for side in parent.reclaim._clock._ahead)
        parent.until(lambda: asked)
    finally:
        parent.db.close()
    assert asked == [False]
    assert jumped(caplog) == pytest.approx(3600, abs=LIMIT)


def test_server_clock_is_read_exactly_when_extra_float_digits_is_low(database):
    """With a rounded time, the clock seemed to stop and then to jump, and no supervisor was ever reclaimed."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET extra_float_digits = '-14'")
    parent = Parent(database)
    parent.until(lambda: parent.lease.receives_notifications and parent.db.is_quiet)
    assert parent.reclaim._clock._ahead[0] + time.monotonic() == pytest.approx(time.time(), abs=LIMIT)
    parent.db.close()


@pytest.mark.parametrize("jump", ["1 hour", "-1 hour"])
def test_clock_jump_between_renewal_and_reclaim_reclaims_no_living_supervisor(parent, database, jump):
    """The renewal returned the time before the jump, so the supervisor has not detected the jump yet."""
    parent.until(lambda: parent.db.is_quiet)
    taken, seen = parent.lease.reclaimed, []
    ask = parent.db.ask

    def jumping(name, parameters, *more):
        if name == "recover/reclaim_supervisors":
            with Queue(database) as queue:  # a clock that moves forward equals stored times that move back
                queue.run(
                    "UPDATE jobherd.supervisors SET lease_until = lease_until - %s::interval, beat_at = beat_at - %s::interval",
                    jump,
                    jump,
                )
                shift = queue.run("SELECT extract(epoch FROM %s::interval)::double precision", jump)[0][0]
            seen.append(parameters["patient"])
            parameters = parameters | {"clock": float(parameters["clock"]) - shift}
        ask(name, parameters, *more)

    with Queue(database) as queue:
        living = queue.supervisor()
        parent.db.ask = jumping
        parent.lease._lease = 0.5  # the tests' server is younger than the default lease
        parent.reclaim._open_since = float("-inf")  # and the supervisor has renewed for as long
        parent.lease._renewed_at = time.monotonic()  # a busy machine must not count as a gap
        parent.lease._renew(time.monotonic())
        parent.lease._renew_at = float("inf")  # exactly one renewal, however long its answers take
        parent.until(lambda: seen and parent.db.is_quiet)
        assert seen == [True]
        assert parent.lease.reclaimed == taken
        assert living.id in [row[0] for row in leases(database)]


def test_slow_answer_does_not_count_as_a_clock_jump(parent):
    parent.reclaim._clock._ahead = None
    for server, asked, now in ((1000.0, 10.0, 10.1), (1009.0, 10.2, 20.0), (1019.9, 20.1, 30.0), (1020.3, 30.1, 30.2)):
        parent.reclaim.note_clock(server, asked=asked, now=now, least=1.0)
    assert parent.reclaim._steady_at == 0.0


def test_rejected_renewal_is_retried_soon_and_no_notification_is_expected(parent):
    """For example after a deadlock or with a full disk: no notification was sent, so none can arrive.

    The regular renewal, a third of the lease later, may be rejected too.
    """
    now = time.monotonic()
    parent.lease._renew(now)
    assert parent.lease._echo_by <= now + ECHO_PATIENCE
    parent.lease._renewed(None, parent.slot_table.supervisor, sent=now, asked=now)
    assert parent.lease._echo_by == float("inf")
    assert parent.lease._renew_at <= now + 1.0


def test_jobs_of_a_dead_supervisor_on_the_same_host_are_reclaimed_at_once(database):
    dead = subprocess.Popen(["true"])
    born = started(dead.pid) or 1
    dead.wait()
    with Queue(database) as queue:
        number = queue.enqueue("a:b")
        child = queue.child()
        child.claim(1)
        me = identity()
        queue.run(
            "UPDATE jobherd.supervisors SET machine = %s, pid = %s, pid_started = %s WHERE id = %s",
            me.machine,
            dead.pid,
            born,
            child.supervisor,
        )
        parent = Parent(database)
        parent.until(lambda: parent.lease.reclaimed == 1)
        assert queue.state(number) == "retrying"
        parent.db.close()


@pytest.mark.parametrize("group", ["its own", "another"])
def test_children_of_a_dead_supervisor_are_killed_before_their_jobs_are_reclaimed(database, group):
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; print('on', flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
        process_group=0 if group == "its own" else None,
    )
    orphan.stdout.readline()
    row = HostSupervisor(7, 2**22 + 1, 1, orphan.pid, started(orphan.pid))
    assert kill_children_of_dead_supervisors([row]) == []  # its child still ran and is being killed now
    orphan.wait(LIMIT)
    orphan.stdout.close()
    assert kill_children_of_dead_supervisors([row]) == [7]


def test_living_supervisor_on_the_same_host_does_not_count_as_dead():
    me = os.getpid()
    assert kill_children_of_dead_supervisors([HostSupervisor(7, me, started(me), None, None)]) == []
    reused = HostSupervisor(7, me, (started(me) or 0) + 1, None, None)
    assert kill_children_of_dead_supervisors([reused]) == [7], "its pid was reused"


def test_rejected_registration_is_retried_at_most_twice_a_second(database):
    refuse = "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(refuse)
        connection.execute("CREATE TRIGGER no BEFORE INSERT ON jobherd.supervisors FOR EACH ROW EXECUTE FUNCTION no()")
    parent = Parent(database)
    tried, register = [], parent.lease._register

    def noting(now):
        tried.append(now)
        register(now)

    parent.lease._register = noting
    parent.until(lambda: len(tried) == 3)
    assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(tried))
    assert parent.refused.count("lease/register_supervisor") == 2
    parent.db.close()


def test_changed_lease_applies_at_once_with_an_extra_renewal(parent):
    parent.lease.change_lease(90.0)
    parent.until(lambda: parent.control.lease_deadline > time.monotonic() + 80)


def test_unanswered_query_for_dead_supervisors_is_repeated(parent):
    parent.until(lambda: parent.reclaim._at == float("inf"))
    parent.reclaim._found(None)
    assert parent.reclaim._at < time.monotonic() + 1
