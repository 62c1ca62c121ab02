"""An open transaction of a caller blocks no statement of a supervisor, worker or maintenance process."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd import Schedule
from jobherd.handlers._values.outcome import OK
from jobherd.workers.job.finished import Finished, settlement
from tests.sql.test_gates import gated
from tests.support.queue import Line, Queue
from tests.support.remote import Gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT = "10ms"
"""Lock timeout. The caller never releases its locks, so any duration would do."""


DECLARED = {"names": ["slow:one"], "max_running": [3]}
KIND = {
    "names": ["slow:one"], "queues": ["media"], "priorities": [0], "max_attempts": [5], "max_crashes": [3], "keep_completed": [3],
    "keep_failed": [30], "redacts": ["[]"], "partitions": [None], "signatures": [None],
}  # fmt: skip
"""What the handlers of a worker declare when it starts."""


class Scene:
    """Jobs in every state, two claims, and a session with a short lock timeout."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.supervisor = queue, queue.supervisor()
        self.child, self.other = self.supervisor.child(), self.supervisor.child()
        queue.run("SELECT jobherd.set_limit('capped', 5)")
        queue.run("INSERT INTO jobherd.gates (scope, name, paused_at, resume_at) VALUES ('queue', 'due', now(), now())")
        self.past, busy, *more = queue.enqueue_many("a:b", 4, queue="media", tenant="acme")
        claim = self.child.claim(4)
        self.token, self.busy, self.neighbour, self.third = claim[0].token, busy, *more
        self.child.settle(
            self.token, [self.past], "failed", code="NO", error="no", log='{"output": "a", "entries": []}'
        )
        queue.run("UPDATE jobherd.logs SET drop_on = now()::date - 2")
        self.whole = queue.enqueue("a:b", queue="whole")
        self.second = self.other.claim(1)[0].token
        self.gateway = Gateway(queue)
        self.remote = self.gateway.open()
        queue.enqueue_many("a:b", 2, queue="whole", tenant="acme")
        self.dealt = self.gateway.claim((self.remote, 1), (self.remote, 1))
        self.later = queue.enqueue("a:b", delay=3600.0)
        queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 s'")
        self.ready, self.free = queue.enqueue_many("a:b", 2, tenant="acme")
        self.capped = queue.enqueue("a:b", queue="capped")
        queue.run("SELECT jobherd.demand(%s, '{\"memory_mb\": 1}')", self.ready)
        for kind, options in (("u.ready", '{"unique": true}'), ("u.later", '{"unique": true, "debounce": "1 ms"}')):
            queue.run("SELECT jobherd.enqueue(%s, '{}', %s)", kind, options)
        queue.run("INSERT INTO jobherd.keys SELECT sha256('dead'), 1, NULL, 'live', 'a:b'")
        self.session = self.other.connection
        queue.connection.execute(queue.text("lease/declare_limits"), DECLARED)
        queue.connection.execute(queue.text("lease/register_kinds"), KIND)
        queue.run(
            "SELECT jobherd.schedule('made', 'a:b', every => '1 h'), jobherd.schedule('gone', 'a:b', every => '1 h')"
        )
        queue.run(
            "UPDATE jobherd.schedules SET plan_from = NULL, next_at = now() - interval '1 s', options = '{\"pause_after\": 1}'"
        )
        self.declare(every=3600.0)
        self.line = Line(self.session, self.other.id)
        self.session.execute(f"SET lock_timeout TO '{WAIT}'")
        self.gateway.connection = self.session

    def declare(self, *, every: float, session: psycopg.Connection | None = None) -> list[str]:
        """Declare a schedule as a worker does. Return the names that could not be stored."""
        one = json.dumps([Schedule("declared", every=every).definition("a:b")])
        given = {"supervisor": self.supervisor.id, "schedules": one}
        text = self.queue.text("schedule/declare_schedules")
        return [name for (name,) in (session or self.queue.connection).execute(text, given).fetchall()]

    def statements(self) -> dict[str, Callable[[], object]]:
        """Return the statements of the fleet, by name."""
        child, parameters = self.child, {"supervisor": self.supervisor.id}

        def send(name: str, **given: object) -> Callable[[], object]:
            return lambda: self.session.execute(self.queue.text(name), parameters | given)

        def settle(outcome: str) -> Callable[[], object]:
            given = child.settlement(
                self.token, [self.busy, self.neighbour, self.third], outcome, delay=5.0, error="x", code="X"
            )
            return lambda: self.session.execute(self.queue.text("settle/settle_jobs"), given)

        def complete() -> None:
            done = [Finished(self.whole, OK, ran=0.1, keep=3)]
            assert self.line.run(
                "settle/settle_completed", settlement(self.other.id, self.second, done, ran_on="host/1", now=1.0)
            ) == [(1,)]

        gateway, remote = self.gateway, self.remote

        def settle_claims() -> None:
            claims = [(remote, dealt.token, dealt.jobs) for dealt in self.dealt]
            assert len(gateway.settle_claims(*claims)) == 2

        def extend(name: str, **given: object) -> Callable[[], object]:
            jobs = {"jobs": self.dealt[0].jobs, "tokens": [self.dealt[0].token]}
            return lambda: gateway.rows(
                name, session=remote.id, principal="team-a", lease=15.0, extend=9.0, **jobs, **given
            )

        def due() -> None:
            """Decide all schedules that no other session has locked."""
            rows = [
                json.loads(row[0])
                for row in self.session.execute(self.queue.text("schedule/find_due_schedules"), {"most": 9}).fetchall()
            ]
            decisions = [
                {
                    "name": row["name"],
                    "revision": row["revision"],
                    "next": None,
                    "instants": [],
                    "asked": [],
                    "backfill": None,
                }
                for row in rows
            ]
            self.session.execute(
                self.queue.text("schedule/tick_schedules"), {"decisions": json.dumps(decisions), "by": "x"}
            )
            plans = [{"name": row["name"], "revision": row["revision"], "next": None} for row in rows]
            given = {"plans": json.dumps(plans), "planned_with": "x", "by": "x"}
            self.session.execute(self.queue.text("schedule/plan_schedules"), given)

        return {
            "schedule/tick_schedules": due,
            "schedule/declare_schedules": lambda: self.declare(every=3600.0, session=self.session),
            "schedule/pause_failing": send("schedule/pause_failing", names=None),
            "schedule/tend_schedules": send("schedule/tend_schedules", by="x"),
            "schedule/retire_schedules": send("schedule/retire_schedules"),
            "schedule/declare_postponed": send("schedule/declare_postponed"),
            "schedule/postpone_declarations": send("schedule/postpone_declarations", schedules="[]"),
            "schedule/delete_ticks": send("schedule/delete_ticks", most=10),
            "remote/claim_slots": lambda: gateway.claim_raw((remote, 5), (remote, 5)),
            "remote/settle_claims": settle_claims,
            "remote/open_session": gateway.open,
            "remote/attach_session": lambda: gateway.attach(remote),
            "remote/renew_sessions": lambda: gateway.renew(remote),
            "remote/hold_session": lambda: gateway.hold(remote),
            "remote/release_unheld": lambda: gateway.rows(
                "remote/release_unheld", child=remote.child, jobs=[], tokens=[]
            ),
            "remote/find_held": lambda: gateway.held(remote),
            "remote/find_session_cancels": lambda: gateway.rows("remote/find_session_cancels"),
            "remote/find_settled": extend("remote/find_settled"),
            "remote/store_extension": extend("remote/store_extension"),
            "remote/take_extensions": extend(
                "remote/take_extensions", sessions=[remote.id], attached=[remote.attached]
            ),
            "claim/claim_jobs": lambda: self.other.claim_raw(10),
            "claim/claim_gated": lambda: gated(self.other),
            "settle_jobs ok": settle("ok"),
            "settle_jobs retry": settle("retry"),
            "settle_jobs failed": settle("failed"),
            "settle/settle_completed": complete,
            "settle/lock_claim": send("settle/lock_claim", child=self.other.id, token=self.second, job=self.whole),
            "recover/requeue_child": send(
                "recover/requeue_child", incarnation=child.incarnation, cleared=None, error=""
            ),
            "recover/requeue_unacknowledged": send("recover/requeue_unacknowledged", child=child.id, known_tokens=[]),
            "recover/requeue_rest": send(
                "recover/requeue_rest", child=child.id, token=self.token, job=self.busy, called=None
            ),
            "recover/unregister_supervisor": send("recover/unregister_supervisor"),
            "recover/reclaim_supervisors": send(
                "recover/reclaim_supervisors",
                supervisor=0,
                dead=[self.supervisor.id],
                lease=15.0,
                clock=None,
                patient=True,
            ),
            "recover/requeue_orphans": send("recover/requeue_orphans"),
            "lease/register_child": send(
                "lease/register_child", incarnation=99, slot=9, kind="worker", pid=1, pid_started=1
            ),
            "lease/register_kinds": send("lease/register_kinds", **KIND),
            "lease/declare_limits": send("lease/declare_limits", **DECLARED),
            "lease/renew_lease": send("lease/renew_lease", lease=15.0),
            "control/find_cancels": send("control/find_cancels"),
            "control/take_fleet_commands": send("control/take_fleet_commands", most=10),
            "maintenance/promote_due": send("maintenance/promote_due", most=10),
            "maintenance/end_pauses": send("maintenance/end_pauses"),
            "maintenance/mark_limits_seen": send("maintenance/mark_limits_seen"),
            "maintenance/apply_cancels": send("maintenance/apply_cancels", most=10),
            "maintenance/release_parked": send("maintenance/release_parked", most=10),
            "maintenance/delete_logs": send("maintenance/delete_logs", most=10),
            "maintenance/delete_fleet_commands": send("maintenance/delete_fleet_commands", most=10),
            "maintenance/delete_costs": send("maintenance/delete_costs"),
            "maintenance/delete_progress": send("maintenance/delete_progress"),
            "maintenance/sweep_keys": send("maintenance/sweep_keys", after=None, most=10),
            "maintenance/update_rollup": send("maintenance/update_rollup", span=86400.0, lag=60.0),
        }

    def held_up(self) -> dict[str, str]:
        """Run each statement, roll it back, and return the errors of those that wait for a lock."""
        found = {}
        for name, make in self.statements().items():
            try:
                with self.session.transaction(force_rollback=True):
                    make()
            except psycopg.errors.LockNotAvailable as refused:
                found[name] = str(refused).splitlines()[0]
        return found


TENANT = "jobherd_test_open"
CALLS = {
    "enqueue": ("jobherd_enqueue", "SELECT jobherd.enqueue('a:b', '{}')"),
    "enqueue later": ("jobherd_enqueue", """SELECT jobherd.enqueue('a:b', '{}', '{"delay" : "1 hour"}')"""),
    "enqueue with the trigger at once": (
        "jobherd_enqueue",
        "SET CONSTRAINTS ALL IMMEDIATE; SELECT jobherd.enqueue('a:b', '{}')",
    ),
    "enqueue a unique job": ("jobherd_enqueue", """SELECT jobherd.enqueue('a:b', '{"n" : 1}', '{"unique" : true}')"""),
    "enqueue a duplicate": ("jobherd_enqueue", """SELECT jobherd.enqueue('u.ready', '{}', '{"unique" : true}')"""),
    "replace a ready job": (
        "jobherd_enqueue",
        """SELECT jobherd.enqueue('u.ready', '{}', '{"unique" : {"conflict" : "replace"}}')""",
    ),
    "replace a scheduled job": (
        "jobherd_enqueue",
        """SELECT jobherd.enqueue('u.later', '{}', '{"unique" : true, "debounce" : "1 hour"}')""",
    ),
    "cancel running": ("jobherd_admin", "SELECT jobherd.cancel(:busy)"),
    "cancel ready": ("jobherd_admin", "SELECT jobherd.cancel(:ready)"),
    "cancel scheduled": ("jobherd_admin", "SELECT jobherd.cancel(:later)"),
    "delete by the view": ("jobherd_admin", "DELETE FROM jobherd.jobs WHERE id IN (:busy, :ready, :past)"),
    "retry": ("jobherd_admin", "SELECT jobherd.retry(:past)"),
    "retry scheduled": ("jobherd_admin", "SELECT jobherd.retry(:later)"),
    "retry edited": ("jobherd_admin", "SELECT jobherd.retry_edited(:past, '{}')"),
    "delete": ("jobherd_admin", "SELECT jobherd.delete(:past)"),
    "reprioritize": ("jobherd_admin", "SELECT jobherd.reprioritize(:ready, 5)"),
    "reprioritize scheduled": ("jobherd_admin", "SELECT jobherd.reprioritize(:later, 5)"),
    "reschedule": ("jobherd_admin", "SELECT jobherd.reschedule(:ready, now() + interval '1 hour')"),
    "reschedule at once": ("jobherd_admin", "SELECT jobherd.reschedule(:later, now() - interval '1 hour')"),
    "pause a queue": ("jobherd_admin", "SELECT jobherd.pause('media')"),
    "pause what is capped": ("jobherd_admin", "SELECT jobherd.pause('capped')"),
    "pause a kind": ("jobherd_admin", "SELECT jobherd.pause(kind => 'a:b')"),
    "pause everything": ("jobherd_admin", "SELECT jobherd.pause('*')"),
    "pause a kind with a declared limit": ("jobherd_admin", "SELECT jobherd.pause(kind => 'slow:one')"),
    "resume": ("jobherd_admin", "SELECT jobherd.resume('due')"),
    "cap": ("jobherd_admin", "SELECT jobherd.set_limit('capped', 9)"),
    "lift a cap": ("jobherd_admin", "SELECT jobherd.set_limit('capped')"),
    "cap a kind": ("jobherd_admin", "SELECT jobherd.set_limit(kind => 'a:b', max_running => 1)"),
    "limit each partition": (
        "jobherd_admin",
        "SELECT jobherd.limit_each('capped', 1), jobherd.limit_each_rate('capped', '1/s')",
    ),
    "let partitions take turns": ("jobherd_admin", "SELECT jobherd.fair('media')"),
    "make a schedule": ("jobherd_admin", "SELECT jobherd.schedule('new', 'a:b', every => '1 h')"),
    "edit a schedule": ("jobherd_admin", "SELECT jobherd.schedule('made', every => '2 h')"),
    "edit a declared schedule": ("jobherd_admin", "SELECT jobherd.schedule('declared', every => '2 h')"),
    "pause a schedule": ("jobherd_admin", "SELECT jobherd.pause_schedule('declared')"),
    "run a schedule": ("jobherd_admin", "SELECT jobherd.run_schedule('made')"),
    "delete a schedule": ("jobherd_admin", "SELECT jobherd.unschedule('gone')"),
    "order": ("jobherd_admin", "SELECT jobherd.send_fleet_command(:supervisor, 'drain')"),
    "audit": ("jobherd_admin", "SELECT jobherd.note_audit('ada', 'did it')"),
    "wait": ("jobherd_read", "SELECT jobherd.meet_settlements(ARRAY[:busy, :whole])"),
    "look": ("jobherd_read", "SELECT * FROM jobherd.jobs"),
    "tenant enqueues": (TENANT, "SELECT jobherd.enqueue('a:b', '{}')"),
    "tenant cancels running": (TENANT, "SELECT jobherd.cancel(:busy)"),
    "tenant cancels ready": (TENANT, "SELECT jobherd.cancel(:ready)"),
    "tenant retries": (TENANT, "SELECT jobherd.retry(:past)"),
    "demand": ("jobherd_admin", """SELECT jobherd.demand(:ready, '{"memory_mb" : 7}')"""),
    "enqueue and demand": ("jobherd_enqueue", """SELECT jobherd.demand(jobherd.enqueue('a:b'), '{"memory_mb" : 7}')"""),
    "tenant looks": (TENANT, "SELECT * FROM jobherd.tenant_jobs"),
}
"""The role and statement of each call. `:name` is an integer attribute of the scene."""


@pytest.fixture
def scene(database: str) -> Iterator[Scene]:
    """Provide a scene with a tenant's role. Roles belong to the whole server, so it is dropped afterward."""
    with Queue(database) as queue:
        queue.run(f"CREATE ROLE {TENANT}")
        try:
            queue.run(f"SELECT jobherd.grant_tenant('{TENANT}', 'acme')")
            yield Scene(queue)
        finally:
            queue.run(f"DROP OWNED BY {TENANT}")
            queue.run(f"DROP ROLE {TENANT}")


def test_open_transaction_of_a_caller_blocks_no_statement_of_the_fleet(scene: Scene) -> None:
    assert scene.held_up() == {}, "no transaction is open yet"
    given = {name: str(value) for name, value in vars(scene).items() if isinstance(value, int)} | {
        "supervisor": str(scene.supervisor.id)
    }
    found = {}
    with psycopg.connect(scene.queue.dsn) as caller:
        for call, (role, text) in CALLS.items():
            caller.execute(f"SET LOCAL ROLE {role}")
            caller.execute(re.sub(r":(\w{4,})", lambda match: given[match[1]], text).encode())
            if held := scene.held_up():
                found[call] = held
            caller.rollback()
    assert found == {}


def test_declaration_of_a_locked_schedule_returns_its_name_after_a_short_wait(scene: Scene) -> None:
    """The statement waits at most 2 s for the lock, so that a worker can start."""
    with psycopg.connect(scene.queue.dsn) as caller:
        caller.execute("SELECT jobherd.pause_schedule('declared')")
        assert scene.declare(every=60.0, session=scene.session) == ["declared"]
    assert scene.declare(every=60.0, session=scene.session) == []


def test_lock_on_a_claim_is_detected(scene: Scene) -> None:
    """Otherwise the test of open transactions would prove nothing."""
    with psycopg.connect(scene.queue.dsn) as caller:
        caller.execute("SELECT FROM jobherd.running FOR UPDATE")
        assert {
            "settle_jobs ok",
            "settle/settle_completed",
            "recover/requeue_child",
            "recover/unregister_supervisor",
        } <= scene.held_up().keys()
