"""The supervisor's side of its connection to the uplink, against a socket that stands for one."""

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
from jobherd.supervisor.policy.fleet import Fleet
from jobherd.supervisor.policy.limits import Limits
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
    """The other end."""

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
def fleet():
    fleet = Fleet(Limits(workers=1, max_workers=1, has_uplink=True))
    fleet.on_registered(1)
    return fleet


@pytest.fixture
def uplink(tmp_path):
    uplink = Uplink(tmp_path)
    yield uplink
    uplink.close()


@pytest.fixture
def link(fleet, tmp_path):
    with selectors.DefaultSelector() as selector:
        link = UplinkLink(fleet, selector, tmp_path)
        yield link
        link.close()


def start(fleet, incarnation=1):
    slot = next(slot for slot in fleet.slots if slot.kind is UPLINK)
    fleet.on_fork(slot, pid=os.getpid(), incarnation=incarnation, now=1.0, started=0, jitter=0.0)
    fleet.on_message(slot, Ready(incarnation, 0), 1.0)
    return slot


def connect(link, uplink, fleet, now=1.0):
    start(fleet)
    link.step(now)
    uplink.accept()
    return uplink.read()


def test_it_connects_once_the_uplink_is_ready_and_names_the_workers_that_live(link, uplink, fleet):
    link.step(1.0)
    assert (link.link, link.wake_at(1.0)) == (Link.AWAY, float("inf"))
    fleet.on_fork(fleet.slots[0], pid=1, incarnation=7, now=1.0, started=0, jitter=0.0)
    assert connect(link, uplink, fleet) == {"begin": {"session": "", "living": [7]}}
    assert (link.link, link.is_quiet) == (Link.UP, True)


def test_it_names_a_dead_worker_until_that_one_is_recovered(link, uplink, fleet):
    worker = fleet.slots[0]
    fleet.on_fork(worker, pid=1, incarnation=7, now=1.0, started=0, jitter=0.0)
    work = CurrentWork(Phase.BOOTING)
    fleet.on_exit(worker, death_of(fleet, worker, Exit(0, None), work=work, now=2.0, started=0, jitter=0.0))
    fleet.on_fork(worker, pid=2, incarnation=8, now=3.0, started=0, jitter=0.0)
    assert connect(link, uplink, fleet)["begin"]["living"] == [8, 7]
    fleet.on_recovered(7, 4.0)
    uplink.end()
    link.step(5.0)
    link.step(6.0)
    uplink.accept()
    assert uplink.read()["begin"]["living"] == [8]


def test_an_uplink_that_does_not_listen_yet_is_tried_again(link, fleet):
    start(fleet)
    link.step(1.0)
    assert link.link is Link.AWAY
    assert 1.0 < link.wake_at(1.0) < 2.0


def test_a_request_of_the_turn_in_which_it_connects_is_answered(link, uplink, fleet):
    answers = []

    def again(rows):
        answers.append(rows)
        link.ask("recover/requeue_rest", {}, answers.append)

    start(fleet)
    link.ask("recover/terminate_child_sessions", {"incarnation": 2}, again)
    link.step(1.0)
    assert (link.link, answers) == (Link.UP, [None])
    uplink.accept()
    assert "begin" in uplink.read()
    assert uplink.read()["ask"] == "recover/requeue_rest", "it was asked on this connection"


def test_a_request_gets_the_rows_of_its_own_answer(link, uplink, fleet):
    connect(link, uplink, fleet)
    answers = []
    link.ask("recover/requeue_child", {"supervisor": 1, "incarnation": 2}, lambda rows: answers.append(("one", rows)))
    link.ask("settle/settle_jobs", {"ids": [5], "delays": None}, lambda rows: answers.append(("two", rows)))
    first, second = uplink.read(), uplink.read()
    assert first["ask"], first["with"] == ("recover/requeue_child", {"supervisor": 1, "incarnation": 2})
    assert not link.is_quiet
    uplink.say({"id": second["id"], "rows": [["5"]]}, {"id": first["id"], "rows": []}, {"id": 99, "rows": []})
    link.step(2.0)
    assert answers == [("two", [("5",)]), ("one", [])]
    assert link.is_quiet


def test_a_request_that_is_rejected_for_good_says_so_to_who_can_act_on_it(link, uplink, fleet):
    connect(link, uplink, fleet)
    answers = []
    link.ask("settle/settle_jobs", {}, answers.append, lambda: answers.append("refused"))
    link.ask("settle/settle_jobs", {}, answers.append)
    uplink.say(*({"id": uplink.read()["id"], "refused": True} for _ in range(2)))
    link.step(2.0)
    assert answers == ["refused", None]


def test_an_uplink_that_dies_answers_none_and_the_next_one_gets_its_session(link, uplink, fleet):
    connect(link, uplink, fleet)
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


def test_a_request_without_an_uplink_is_answered_at_the_next_step(link):
    answers = []
    link.ask("recover/requeue_child", {}, answers.append)
    assert (answers, link.wake_at(1.0)) == ([], 0.0)
    link.step(1.0)
    assert answers == [None]


def test_what_the_socket_does_not_take_at_once_follows_and_lines_may_come_in_pieces(link, uplink, fleet):
    connect(link, uplink, fleet)
    long = "x" * 3_000_000
    link.ask("settle/settle_jobs", {"results": [long]}, lambda rows: None)
    assert link._unsent, "the socket's buffer is smaller"
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
def test_events(line, event):
    assert parse(json.dumps(line).encode()) == event


@pytest.mark.parametrize(
    "line",
    [b"", b"no json", b"7", b"[]", b"{}", b'{"event": "later version"}', b'{"event": "cancel", "token": 1}', b'{"id": 1}',
     b'{"id": 1, "rows": 7}', b'{"event": []}', b"[" * 100_000, b"\xff"],
)  # fmt: skip
def test_a_line_that_is_nothing_known_is_ignored(line):
    assert parse(line) is None


def test_nothing_is_recovered_for_a_dead_uplink_and_everything_for_a_dead_worker(fleet):
    """At the end of a drain no uplink is left that could answer."""
    slot = start(fleet, incarnation=2)
    worker = fleet.slots[0]
    fleet.on_fork(worker, pid=2, incarnation=3, now=1.0, started=0, jitter=0.0)
    for each in (slot, worker):
        work = CurrentWork(Phase.BOOTING)
        fleet.on_exit(each, death_of(fleet, each, Exit(0, None), work=work, now=2.0, started=0, jitter=0.0))
    assert fleet.unrecovered == {3}
