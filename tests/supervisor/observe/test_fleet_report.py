"""The fleet report: what a supervisor writes to the database about its child processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from jobherd.supervisor.database.connection import Link
from jobherd.supervisor.database.fleet_commands import CommandRejected, FleetCommand
from jobherd.supervisor.observe import fleet_report
from jobherd.supervisor.observe.fleet_report import FleetReport
from jobherd.supervisor.observe.process_use import Look, look, share
from jobherd.supervisor.policy.child_exit import End, Exit
from jobherd.supervisor.policy.exits import death_of
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.settings.definitions import Settings
from jobherd.supervisor.settings.live import LiveSettings
from jobherd.workers.ipc.counters import Policy
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import Ready
from jobherd.workers.ipc.status_board import StatusBoard
from tests.support.patience import LIMIT


class Post:
    """Replaces the database session and stores the requests."""

    link = Link.UP
    epoch = 1

    def __init__(self):
        self.letters = []

    def ask(self, name, parameters, answered, refused=None):
        self.letters.append((name, parameters, answered))


class Book:
    """Stores the answers to fleet commands."""

    def __init__(self):
        self.answers = {}

    def answer(self, number, answer=None, *, error=None):
        self.answers[number] = error or "done"


class Scene:
    """A slot table whose children all have the pid of this process, and its report."""

    def __init__(self, children=1):
        self.post, self.book, self.now = Post(), Book(), 1000.0
        self.slot_table = SlotTable(Limits(workers=children))
        self.slot_table.on_registered(7)
        self.boards = [StatusBoard("test") for _ in range(children)]
        for place in range(children):
            slot = self.slot_table.slots[place]
            self.slot_table.on_fork(slot, pid=os.getpid(), incarnation=place + 1, now=self.now, started=0, jitter=0.0)
            self.slot_table.on_message(slot, Ready(1, 1), self.now)
            self.boards[place].set_idle(idle=True)
        lease = SimpleNamespace(renewals=0, reclaimed=0)
        settings = LiveSettings(replace(Settings(), queues=("mail",), queue_order="turns"))
        self.facts = FleetReport(self.post, self.slot_table, lease, self.boards, commands=self.book, settings=settings)

    def report(self, number=1, **arguments):
        self.facts.report(FleetCommand(number, "report", arguments, "anna"), self.now)

    def turn(self, after=0.0):
        self.now += after
        self.facts.step(self.now)

    def written(self):
        """Return the last report that was written."""
        name, parameters, _ = self.post.letters[-1]
        assert (name, parameters["supervisor"]) == ("lease/store_report", 7)
        return json.loads(parameters["facts"])

    def close(self):
        for board in self.boards:
            board.close()


@pytest.fixture
def scene():
    made = []

    def make(children=1):
        made.append(Scene(children))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_no_report_is_written_without_a_request(scene):
    one = scene()
    for _ in range(100):
        one.turn(0.1)
    assert one.post.letters == []
    assert one.facts.wake_at(one.now) == float("inf")


def test_report_command_is_answered_after_the_report_is_written(scene):
    one = scene(2)
    one.boards[1].set_held(4)
    one.report(5)
    assert one.facts.wake_at(one.now) <= one.now
    one.turn()
    document = one.written()
    assert [child["name"] for child in document["children"]] == ["worker 0", "worker 1"]
    assert [child["held"] for child in document["children"]] == [0, 4], "jobs that are claimed but not started"
    assert document["run_state"] == "serving"
    assert (document["queues"], document["turns"], document["tiers"]) == (["mail"], True, [0])
    assert one.book.answers == {}, "answered before the report was written"
    one.post.letters[-1][2]([])
    assert one.book.answers == {5: "done"}
    assert one.facts.wake_at(one.now) == float("inf")


def test_report_that_cannot_be_written_is_answered_with_an_error(scene):
    one = scene()
    one.report(5)
    one.turn()
    one.post.letters[-1][2](None)
    assert "could not be written" in one.book.answers[5]


def test_report_of_sixty_children_reads_a_few_processes_in_each_turn(scene, monkeypatch):
    one = scene(60)
    looks = []
    monkeypatch.setattr(fleet_report, "look", lambda pid, now: looks.append(pid))
    one.report()
    counts = []
    while not one.post.letters:
        before = len(looks)
        one.turn()
        counts.append(len(looks) - before)
        assert one.post.letters or one.facts.wake_at(one.now) <= one.now, "the report continues in the next turn"
    assert max(counts) <= 9, "up to 8 children, and the supervisor itself in the last turn"
    assert len(one.written()["children"]) == 60


def test_report_is_written_once_a_second_until_the_last_request_ends(scene):
    one = scene()
    for number in range(50):
        one.report(number, **{"for": 3})
        one.turn(0.01)
    assert len(one.post.letters) == 1
    for _ in range(600):
        one.turn(0.01)
    times = len(one.post.letters)
    assert 4 <= times <= 5, "one report at once, then one each second until the last request has ended"
    for _ in range(600):
        one.turn(0.01)
    assert len(one.post.letters) == times


def test_report_is_written_with_every_third_renewal(scene):
    one = scene()
    for _ in range(12):
        one.now += 5.0
        one.facts.renewed(one.now)
        one.turn()
    assert len(one.post.letters) == 4, "12 renewals, a report with every third"


@pytest.mark.parametrize("span", [-1, 61, "long", None, True, float("nan")])
def test_invalid_duration_of_a_report_is_rejected(scene, span):
    with pytest.raises(CommandRejected, match="a number of seconds from 0 to 60"):
        scene().report(**{"for": span})


def test_report_names_the_current_job_of_a_child_and_the_last_death_in_its_slot(scene):
    one = scene()
    slot, board = one.slot_table.slots[0], one.boards[0]
    numbers = board.tally.declare([Policy("mail:receipt"), Policy("own:store", table=True)])
    board.set_idle(idle=False)
    board.say(CurrentWork(Phase.RUNNING, 1, 9, 17, numbers["mail:receipt"], 2, 5, 0, one.now - 3, one.now + 7))
    board.tell_progress(b'{"fraction": 0.4, "note": "half\\u0000way", "data": [1]}')
    one.slot_table.on_explained(
        slot,
        End(
            "worker 0",
            4711,
            "signal",
            "Process 12 died of SIGKILL (not sent by the supervisor).",
            one.now - 60,
            16,
            "mail:receipt",
        ),
    )
    one.report()
    one.turn()
    [child] = one.written()["children"]
    assert {name: child[name] for name in ("job", "job_kind", "attempt", "most_attempts", "elapsed", "left")} == {
        "job": 17, "job_kind": "mail:receipt", "attempt": 2, "most_attempts": 5, "elapsed": 3.0, "left": 7.0,
    }  # fmt: skip
    assert child["progress"] == {"fraction": 0.4, "note": "half\N{REPLACEMENT CHARACTER}way"}
    assert child["last_end"] == {
        "cause": "signal",
        "sentence": "Process 12 died of SIGKILL (not sent by the supervisor).",
        "ago": 60.0,
    }
    assert one.written()["ends"] == [
        {
            "cause": "signal",
            "sentence": "Process 12 died of SIGKILL (not sent by the supervisor).",
            "ago": 60.0,
            "name": "worker 0",
            "pid": 4711,
            "job": 16,
            "job_kind": "mail:receipt",
        }
    ]
    board.say(CurrentWork(Phase.RUNNING, 1, 9, 17, numbers["own:store"], 2, 5, 0, one.now))
    board.tell_progress(b'{"fraction": 1e999, "note": 7}')
    one.report()
    one.turn(1.0)
    [child] = one.written()["children"]
    assert ("job" in child, child["record"], child["left"]) == (False, 17, None), (
        "a record of an application table must not be reported as a job"
    )
    assert child["progress"] == {"fraction": None, "note": None}


def test_report_shows_a_slot_that_rests_after_a_crash_with_the_cause(scene):
    one = scene(2)
    slot = one.slot_table.slots[1]
    one.slot_table.on_exit(
        slot, death_of(one.slot_table, slot, Exit(None, 9), work=slot.seen.work, now=one.now, started=0, jitter=0.0)
    )
    one.slot_table.on_explained(
        slot, End("worker 1", 4711, "signal", "Process 12 died of SIGKILL (not sent by the supervisor).", one.now)
    )
    one.report()
    one.turn()
    resting = one.written()["children"][1]
    assert (resting["state"], resting["last_end"]["cause"]) == ("resting", "signal")
    assert resting["left"] > 0


def test_stopped_process_is_reported_as_stopped_not_idle(scene):
    one = scene()
    one.slot_table.on_stopped(one.slot_table.slots[0], signal.SIGSTOP, one.now)
    one.report()
    one.turn()
    assert one.written()["children"][0]["state"] == "stopped"


def test_requested_exit_is_not_listed_among_the_deaths(scene):
    one = scene()
    one.slot_table.on_explained(
        one.slot_table.slots[0], End("worker 0", 1, "requested", "It exited as requested.", one.now)
    )
    assert not one.slot_table.ends
    assert one.slot_table.slots[0].last_end.cause == "requested"


# -- real processes


def until(condition):
    limit = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < limit
        os.sched_yield()
    return found


@pytest.mark.parametrize(
    ("program", "state", "waits_on"),
    [
        ("while True: pass", "computing", None),
        ("import sys; sys.stdin.read()", "waiting", "a pipe"),
        ("import time; time.sleep(600)", "waiting", "a sleep"),
        ("import socket; a, b = socket.socketpair(); a.recv(1)", "waiting", "the network"),
        ("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", "waiting", "a lock"),
    ],
)
def test_report_shows_whether_a_process_computes_or_what_it_waits_on(scene, program, state, waits_on):
    one = scene()
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE) as process:
        try:
            one.slot_table.slots[0].process.pid = process.pid
            board = one.boards[0]
            board.set_idle(idle=False)
            board.say(CurrentWork(Phase.RUNNING, 1, 9, 17, 0, 1, 5, 0, one.now))

            def said():
                one.report()
                one.turn(1.0)
                child = one.written()["children"][0]
                return (
                    child
                    if child["state"] == state
                    and child["rss"] > 1e6
                    and (child["waits_on"] == waits_on or not _tells(process.pid))
                    else None
                )

            until(said)
        finally:
            process.kill()


def _tells(pid):
    """Return whether the kernel shows the function that a process sleeps in."""
    with open(f"/proc/{pid}/wchan", "rb") as file:
        return file.read() not in (b"", b"0")


def test_cpu_share_is_calculated_from_two_readings():
    tick = os.sysconf("SC_CLK_TCK")
    assert share(Look(10.0, "R", 0, 1), Look(12.0, "R", tick, 1)) == 0.5
    assert share(None, Look(12.0, "R", tick, 1)) is None
    assert share(Look(12.0, "R", 0, 1), Look(12.0, "R", tick, 1)) is None, "no time has passed between the readings"
    assert look(2**22 + 1, 0.0) is None
    assert look(os.getpid(), 1.0).rss > 1e6


def listened(scene, job=5, **policy):
    """Return a scene whose child runs a job with captured output."""
    one = scene()
    board = one.boards[0]
    kind = board.tally.declare([Policy("mail:receipt", **policy)])["mail:receipt"]
    board.set_idle(idle=False)
    board.say(CurrentWork(Phase.RUNNING, 1, 9, job, kind, 1, 5, 0, one.now, one.now + 60))
    said = b"".join(b"line %d\n" % number for number in range(50)) + b"\x00 the last"
    board.publish_output(len(said), said)
    return one


def test_output_of_a_job_is_reported_only_while_a_request_asks_for_it(scene):
    one = listened(scene)
    one.report()
    one.turn()
    assert one.written()["said"] == {}, "no request has asked for output"
    before = time.monotonic()
    one.report(**{"for": 2, "tail": 5})
    one.turn(1.0)
    said = one.written()["said"]["5"]
    lines = said["text"].splitlines()
    assert (lines[0], len(lines)) == ("line 11", 40)
    assert lines[-1].endswith(" the last")
    assert 0 < said["for"] <= 2
    assert one.boards[0].watched > before, "the board must show that output is wanted"
    for _ in range(3):
        one.turn(1.0)
    one.report()
    one.turn(1.0)
    assert one.written()["said"] == {}, "the request has ended"


def test_output_is_not_reported_for_encrypted_table_or_absent_jobs(scene):
    one = listened(scene)
    one.report(**{"for": 9, "tail": 6})
    one.turn()
    assert one.written()["said"]["6"]["text"] is None
    for policy in ({"sealed": True}, {"table": True}):
        one = listened(scene, **policy)
        one.report(**{"for": 9, "tail": 5})
        one.turn()
        assert one.written()["said"]["5"]["text"] is None, policy


def test_output_of_at_most_eight_jobs_is_reported_at_a_time(scene):
    one = listened(scene)
    for job in range(fleet_report.MOST_TAILS):
        one.report(**{"for": 9, "tail": job})
    one.report(**{"for": 9, "tail": 0})
    with pytest.raises(CommandRejected, match="8 jobs are being watched"):
        one.report(**{"for": 9, "tail": 99})
    one.now += 10
    one.report(**{"for": 9, "tail": 99})


@pytest.mark.parametrize("job", ["5", True, 1.5])
def test_invalid_job_id_is_rejected(scene, job):
    with pytest.raises(CommandRejected, match="the id of a job"):
        scene().report(**{"for": 9, "tail": job})
