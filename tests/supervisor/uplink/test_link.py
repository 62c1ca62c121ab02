"""The supervisor's connection to its uplink process, tested against a socket of the test."""

from __future__ import annotations

import json
import os
import selectors
import socket

import pytest

from jobherd.supervisor.database.connection import Link
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.supervisor.policy.child_kinds import UPLINK
from jobherd.supervisor.policy.exits import death_of
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.uplink.events import (
    GatesChanged,
    HostRejected,
    JobCanceled,
    JobLost,
    SessionChanged,
    parse,
)
from jobherd.supervisor.uplink.link import SOCKET, UplinkLink
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import Ready
from tests.support.patience import LIMIT


class Uplink:
    """Replaces the uplink process: listens on its socket."""

    def __init__(self, folder):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / SOCKET))
        self.listener.listen()
        self.listener.settimeout(LIMIT)
        self.connection = self.lines = None

    def accept(self):
        self.connection = self.listener.accept()[0]
        self.connection.settimeout(LIMIT)
        self.lines = self.connection.makefile("rb")

    def read(self):
        return json.loads(self.lines.readline())

    def say(self, *messages):
        self.connection.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def end(self):
        for each in (self.lines, self.connection):
            if each is not None:
                each.close()

    def close(self):
        self.end()
        self.listener.close()


@pytest.fixture
def slot_table():
    slot_table = SlotTable(Limits(workers=1, max_workers=1, has_uplink=True))
    slot_table.on_registered(1)
    return slot_table


@pytest.fixture
def uplink(tmp_path):
    uplink = Uplink(tmp_path)
    yield uplink
    uplink.close()


@pytest.fixture
def link(slot_table, tmp_path):
    with selectors.DefaultSelector() as selector:
        link = UplinkLink(slot_table, selector, tmp_path)
        yield link
        link.close()


def start(slot_table, incarnation=1):
    slot = next(slot for slot in slot_table.slots if slot.kind is UPLINK)
    slot_table.on_fork(slot, pid=os.getpid(), incarnation=incarnation, now=1.0, started=0, jitter=0.0)
    slot_table.on_message(slot, Ready(incarnation, 0), 1.0)
    return slot


def connect(link, uplink, slot_table, now=1.0):
    start(slot_table)
    link.step(now)
    uplink.accept()
    return uplink.read()


def test_link_connects_when_the_uplink_is_ready_and_lists_living_workers(link, uplink, slot_table):
    link.step(1.0)
    assert (link.link, link.wake_at(1.0)) == (Link.AWAY, float("inf"))
    slot_table.on_fork(slot_table.slots[0], pid=1, incarnation=7, now=1.0, started=0, jitter=0.0)
    assert connect(link, uplink, slot_table) == {"begin": {"session": "", "living": [7]}}
    assert (link.link, link.is_quiet) == (Link.UP, True)


def test_link_lists_a_dead_worker_until_it_is_recovered(link, uplink, slot_table):
    worker = slot_table.slots[0]
    slot_table.on_fork(worker, pid=1, incarnation=7, now=1.0, started=0, jitter=0.0)
    work = CurrentWork(Phase.BOOTING)
    slot_table.on_exit(worker, death_of(slot_table, worker, Exit(0, None), work=work, now=2.0, started=0, jitter=0.0))
    slot_table.on_fork(worker, pid=2, incarnation=8, now=3.0, started=0, jitter=0.0)
    assert connect(link, uplink, slot_table)["begin"]["living"] == [8, 7]
    slot_table.on_recovered(7, 4.0)
    uplink.end()
    link.step(5.0)
    link.step(6.0)
    uplink.accept()
    assert uplink.read()["begin"]["living"] == [8]


def test_link_retries_an_uplink_that_does_not_listen_yet(link, slot_table):
    start(slot_table)
    link.step(1.0)
    assert link.link is Link.AWAY
    assert 1.0 < link.wake_at(1.0) < 2.0


def test_request_made_while_the_link_connects_is_sent_on_the_new_connection(link, uplink, slot_table):
    answers = []

    def again(rows):
        answers.append(rows)
        link.ask("recover/requeue_rest", {}, answers.append)

    start(slot_table)
    link.ask("recover/terminate_child_sessions", {"incarnation": 2}, again)
    link.step(1.0)
    assert (link.link, answers) == (Link.UP, [None])
    uplink.accept()
    assert "begin" in uplink.read()
    assert uplink.read()["ask"] == "recover/requeue_rest", "the request was sent on this connection"


def test_each_request_gets_its_own_answer_in_any_order(link, uplink, slot_table):
    connect(link, uplink, slot_table)
    answers = []
    link.ask("recover/requeue_child", {"supervisor": 1, "incarnation": 2}, lambda rows: answers.append(("one", rows)))
    link.ask("settle/settle_jobs", {"ids": [5], "delays": None}, lambda rows: answers.append(("two", rows)))
    first, second = uplink.read(), uplink.read()
    assert (first["ask"], first["with"]) == ("recover/requeue_child", {"supervisor": 1, "incarnation": 2})
    assert not link.is_quiet
    uplink.say({"id": second["id"], "rows": [["5"]]}, {"id": first["id"], "rows": []}, {"id": 99, "rows": []})
    link.step(2.0)
    assert answers == [("two", [("5",)]), ("one", [])]
    assert link.is_quiet


def test_permanent_rejection_calls_the_refused_callback_or_answers_none(link, uplink, slot_table):
    connect(link, uplink, slot_table)
    answers = []
    link.ask("settle/settle_jobs", {}, answers.append, lambda: answers.append("refused"))
    link.ask("settle/settle_jobs", {}, answers.append)
    uplink.say(*({"id": uplink.read()["id"], "refused": True} for _ in range(2)))
    link.step(2.0)
    assert answers == ["refused", None]


def test_dead_uplink_answers_none_and_the_next_one_gets_its_session(link, uplink, slot_table):
    connect(link, uplink, slot_table)
    answers = []
    uplink.say({"event": "session", "connected": True, "session": "17"})
    link.step(2.0)
    assert (link.connected, link.epoch) == (True, 1)
    link.ask("recover/requeue_child", {}, answers.append)
    uplink.end()
    link.step(3.0)
    assert (answers, link.link, link.connected) == ([None], Link.AWAY, False)
    link.step(4.0)
    uplink.accept()
    assert uplink.read()["begin"]["session"] == "17"
    assert link.epoch == 2


def test_request_without_an_uplink_is_answered_with_none_in_the_next_step(link):
    answers = []
    link.ask("recover/requeue_child", {}, answers.append)
    assert (answers, link.wake_at(1.0)) == ([], 0.0)
    link.step(1.0)
    assert answers == [None]


def test_long_request_is_sent_in_parts_and_lines_may_arrive_in_parts(link, uplink, slot_table):
    connect(link, uplink, slot_table)
    long = "x" * 3_000_000
    link.ask("settle/settle_jobs", {"results": [long]}, lambda rows: None)
    assert link._unsent, "the request must be longer than the socket's buffer"
    received = b""
    while not received.endswith(b"\n"):
        received += uplink.lines.read1()
        link.step(2.0)
    assert json.loads(received)["with"]["results"] == [long]
    for piece in (b'{"event": "ses', b'sion", "connected": true, "session": "4"}\n{"event"', b': "release_rest"}\n'):
        uplink.connection.sendall(piece)
        link.step(2.0)
    assert link.happened == [SessionChanged(True, "4", ""), GatesChanged()]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ({"event": "cancel", "incarnation": 3, "token": 9, "job": 4}, JobCanceled(3, 9, 4)),
        ({"event": "lost", "incarnation": 3, "token": 9, "job": 4}, JobLost(3, 9, 4)),
        ({"event": "release_rest"}, GatesChanged()),
        ({"event": "rejected", "error": "bad token"}, HostRejected("bad token")),
        ({"event": "session", "connected": False, "session": "", "trouble": "no"}, SessionChanged(False, "", "no")),
    ],
)
def test_parse_returns_each_event(line, event):
    assert parse(json.dumps(line).encode()) == event


@pytest.mark.parametrize(
    "line",
    [b"", b"no json", b"7", b"[]", b"{}", b'{"event": "later version"}', b'{"event": "cancel", "token": 1}', b'{"id": 1}',
     b'{"id": 1, "rows": 7}', b'{"event": []}', b"[" * 100_000, b"\xff"],
)  # fmt: skip
def test_parse_ignores_unknown_and_invalid_lines(line):
    assert parse(line) is None


def test_dead_worker_needs_recovery_and_a_dead_uplink_does_not(slot_table):
    """At the end of a drain, no uplink is left to answer a request for recovery."""
    slot = start(slot_table, incarnation=2)
    worker = slot_table.slots[0]
    slot_table.on_fork(worker, pid=2, incarnation=3, now=1.0, started=0, jitter=0.0)
    for each in (slot, worker):
        work = CurrentWork(Phase.BOOTING)
        slot_table.on_exit(each, death_of(slot_table, each, Exit(0, None), work=work, now=2.0, started=0, jitter=0.0))
    assert slot_table.unrecovered == {3}
