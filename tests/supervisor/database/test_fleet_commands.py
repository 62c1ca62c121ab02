"""A supervisor receives fleet commands, executes them and answers.

The session is real; each test calls its steps and passes the time.
"""

from __future__ import annotations

import json
import sys
import time

import psycopg
import pytest
from psycopg.rows import dict_row

from jobherd.supervisor.database.cancels import Cancels
from jobherd.supervisor.database.connection import DatabaseConnection
from jobherd.supervisor.database.ended_children import EndedChildren
from jobherd.supervisor.database.fleet_commands import MOST, SOONEST, CommandRejected, FleetCommands, as_json
from jobherd.supervisor.database.identity import identity
from jobherd.supervisor.database.lease import Lease
from jobherd.supervisor.database.reclaim import Reclaim
from jobherd.supervisor.events.commands import CommandRunner
from jobherd.supervisor.events.signals import objection
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.workers.ipc.control_block import ControlBlock
from tests.support.patience import LIMIT
from tests.support.queue import Queue


class Parent:
    """A supervisor's session, its registration and its fleet commands."""

    def __init__(self, dsn):
        self.db = DatabaseConnection(
            dsn, schema="jobherd", application_name="parent", retry_initial=0.05, retry_max=1.0
        )
        self.slot_table, self.control = SlotTable(Limits()), ControlBlock()
        self.done = []
        self.deaf = False
        self.commands = FleetCommands(self.db, self.slot_table)
        actions = {"echo": self.echo, "later": self.later, "never": self.never, "break": self.fall}
        self.runner = CommandRunner(self.commands, actions)
        me = identity()
        self.lease = Lease(
            self.db,
            self.slot_table,
            self.control,
            cancels=Cancels(self.db, self.slot_table),
            reclaim=Reclaim(self.db, self.slot_table, me),
            ended_children=EndedChildren(self.db, self.slot_table),
            me=me,
            lease=15.0,
        )

    def echo(self, order, now):
        self.done.append(order.id)
        return {"said": order.arguments.get("say"), "to": order.asked_by}

    def later(self, order, now):
        self.done.append(order.id)

    def never(self, order, now):
        raise CommandRejected("not today")

    def fall(self, order, now):
        return {}["nothing"]

    def turn(self, ahead=0.0):
        now = self.now = time.monotonic() + ahead
        self.db.step(now)
        self.lease.step(now)
        notes, self.db.notifications = self.db.notifications, []
        for note in notes:
            if note.startswith("@renewal:"):
                self.lease.echoed(note.removeprefix("@renewal:"))
            elif note.startswith("@order:") and not self.deaf:
                self.commands.notified(note.removeprefix("@order:"))
        for renewed in self.lease.renewed:
            if renewed.commands:
                self.commands.query()
        self.lease.renewed.clear()
        self.runner.step(now)
        self.db.step(now)

    def until(self, condition, ahead=0.0):
        limit = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < limit, (self.db.link, self.db.trouble, self.done)
            self.turn(ahead)


@pytest.fixture
def parent(database):
    parent = Parent(database)
    parent.until(lambda: parent.lease.receives_notifications)
    yield parent
    parent.db.close()


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def give(queue, parent, name, **arguments):
    return queue.run(
        "SELECT jobherd.send_fleet_command(%s, %s, %s, 'anna')",
        parent.slot_table.supervisor,
        name,
        json.dumps(arguments),
    )[0][0]


def told(queue, number):
    row = (
        queue.connection.cursor(row_factory=dict_row)
        .execute(queue.text("control/show_fleet_command"), {"order": number})
        .fetchone()
    )
    return row if row["done_at"] is not None else None


def test_fleet_command_is_executed_once_and_answered(parent, queue):
    number = give(queue, parent, "echo", say="hello")
    parent.until(lambda: told(queue, number))
    assert told(queue, number)["answer"] == {"said": "hello", "to": "anna"}
    assert told(queue, number)["taken_at"] is not None
    assert parent.done == [number]
    parent.turn()
    assert parent.runner.wake_at(time.monotonic()) == float("inf"), "otherwise the loop would spin"


def test_fleet_command_without_a_notification_is_found_at_the_next_renewal(parent, queue):
    parent.deaf = True
    number = give(queue, parent, "echo")
    before = parent.lease.renewals
    parent.until(lambda: told(queue, number), ahead=5.1)
    assert parent.lease.renewals > before


def test_rejected_unknown_and_failing_commands_are_answered_with_an_error(parent, queue):
    refused, unknown, broken, fine = (give(queue, parent, name) for name in ("never", "dance", "break", "echo"))
    parent.until(lambda: told(queue, fine))
    assert told(queue, refused)["error"] == "not today"
    assert "does not have the fleet command 'dance', only break, echo" in told(queue, unknown)["error"]
    assert told(queue, broken)["error"] == "it failed: KeyError: 'nothing'"
    assert parent.done == [fine], "the supervisor continues"


DEEP = "[" * 4000 + "]" * 4000
READS_ALL = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="CPython 3.13 reads every depth that PostgreSQL stores"
)


@pytest.mark.parametrize(
    "arguments", ['{"job": ' + "7" * 5000 + "}", pytest.param('{"job": ' + DEEP + "}", marks=READS_ALL)]
)
def test_arguments_that_python_cannot_parse_are_rejected_and_the_supervisor_continues(parent, queue, arguments):
    number = queue.run(
        "SELECT jobherd.send_fleet_command(%s, 'echo', %s, 'anna')", parent.slot_table.supervisor, arguments
    )[0][0]
    fine = give(queue, parent, "echo")
    parent.until(lambda: told(queue, fine))
    assert told(queue, number)["error"] == "its arguments cannot be read: too deep, or a number that is too long"
    assert parent.done == [fine]


def test_command_can_be_answered_later_and_only_the_first_answer_counts(parent, queue):
    number = give(queue, parent, "later")
    parent.until(lambda: parent.done == [number])
    for _ in range(10):
        parent.turn()
    assert told(queue, number) is None
    parent.commands.answer(number, {"stack": "a\0b\ud800"})
    parent.commands.answer(number, {"stack": "another"})
    parent.until(lambda: told(queue, number))
    assert told(queue, number)["answer"] == {"stack": "a\N{REPLACEMENT CHARACTER}b?"}


def test_many_fleet_commands_are_executed_in_small_groups_with_pauses(parent, queue):
    queue.run("SELECT jobherd.send_fleet_command(%s, 'echo') FROM generate_series(1, 40)", parent.slot_table.supervisor)
    asked = []
    ask = parent.db.ask
    parent.db.ask = lambda name, *rest: (asked.append((name, parent.now)), ask(name, *rest))
    most = 0
    limit = time.monotonic() + LIMIT
    while len(parent.done) < 40:
        assert time.monotonic() < limit
        before = len(parent.done)
        parent.turn()
        most = max(most, len(parent.done) - before)
    assert most <= MOST
    times = [at for name, at in asked if name == "control/take_fleet_commands"]
    assert len(times) >= 40 / MOST
    assert min(after - before for before, after in zip(times, times[1:], strict=False)) >= SOONEST * 0.99


def test_lost_answer_is_written_by_the_next_session_without_executing_the_command_again(parent, queue):
    number = give(queue, parent, "later")
    parent.until(lambda: parent.done == [number])
    parent.commands.answer(number, {"well": True})
    parent.commands.step(time.monotonic())  # the request is queued, not sent
    parent.db.lose("a test says so", time.monotonic())
    assert told(queue, number) is None
    parent.until(lambda: told(queue, number), ahead=1.0)
    assert told(queue, number)["answer"] == {"well": True}
    assert parent.done == [number]


def test_supervisor_ignores_fleet_commands_for_another_supervisor(parent, queue):
    other = queue.supervisor()
    queue.run("SELECT jobherd.send_fleet_command(%s, 'echo')", other.id)
    for _ in range(20):
        parent.turn()
    assert parent.done == []


def test_answer_that_the_database_rejects_is_replaced_with_a_fixed_error(parent, queue, monkeypatch):
    number = give(queue, parent, "later")
    parent.until(lambda: parent.done == [number])
    monkeypatch.setattr("jobherd.supervisor.database.fleet_commands.as_json", lambda _: "{")
    parent.commands.answer(number, {})
    parent.until(lambda: told(queue, number))
    assert told(queue, number)["error"] == "the answer cannot be written down"


def test_as_json_replaces_characters_and_numbers_that_postgresql_cannot_store():
    document = {"a": "x\0y", "b\ud800": [float("nan"), float("inf"), 1.5, None, True], "c": {"d": ("e",)}}
    assert json.loads(as_json(document)) == {
        "a": "x\N{REPLACEMENT CHARACTER}y",
        "b?": [None, None, 1.5, None, True],
        "c": {"d": ["e"]},
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [("add", "as many as max_workers allows"), ("remove", "no worker left"), ("reload", None), ("drain", None)],
)
def test_fleet_command_that_cannot_be_executed_is_rejected_with_the_reason(name, said):
    slot_table = SlotTable(Limits(workers=2, max_workers=2))
    slot_table.wanted = 0 if name == "remove" else 2
    assert (said in objection(name, slot_table)) if said else objection(name, slot_table) is None
    slot_table.enter_state(RunState.DRAINING, 0.0)
    assert (objection(name, slot_table) is None) == (name == "drain"), "while draining, only another drain is accepted"


def test_reclaimed_supervisor_ignores_fleet_commands_for_its_old_id(parent, queue):
    old = parent.slot_table.supervisor
    number = give(queue, parent, "echo")
    with psycopg.connect(queue.dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM jobherd.supervisors")
    parent.slot_table.on_lease_lost(time.monotonic())
    parent.commands.notified(str(old))
    for _ in range(20):
        parent.commands.step(time.monotonic())
        parent.db.step(time.monotonic())
    assert (told(queue, number), parent.done) == (None, [])
