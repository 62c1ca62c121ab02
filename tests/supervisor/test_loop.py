"""What the loop itself must not forget.

Its policies are tested as plans, its turns by real supervisors.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from jobherd import sql
from jobherd.supervisor import start
from jobherd.supervisor.assembly import Supervisor
from jobherd.supervisor.database.fleet_commands import CommandRejected, FleetCommand
from jobherd.supervisor.database.notifications import Pooler, Rejected
from jobherd.supervisor.policy.actions import Plan
from jobherd.supervisor.policy.kinds import MAINTENANCE
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.policy.slot import HeldClaim
from jobherd.supervisor.settings.definitions import Settings
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import Ready
from tests.support.patience import LIMIT


@pytest.fixture
def supervisor(request):
    supervisor = Supervisor(replace(Settings(), schema=getattr(request, "param", "jobherd")), "host=/nowhere")
    yield supervisor
    supervisor.selector.close()
    supervisor.signal_pipe.close()
    for board in supervisor.boards:
        board.close()
    os.close(supervisor.control.fd)


def test_a_start_without_proc_names_proc(monkeypatch):
    def without_proc(*_, **__):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/self/stat")

    monkeypatch.setattr(start, "Supervisor", without_proc)
    with pytest.raises(start.RefusedError, match="limits its open files"):
        start.run(Settings(), "host=/nowhere")
    monkeypatch.setattr(start.os.path, "exists", lambda path: not path.startswith("/proc"))
    with pytest.raises(start.RefusedError, match=r"^/proc is not mounted"):
        start.run(Settings(), "host=/nowhere")


@pytest.mark.promise("C23")
@pytest.mark.parametrize(("coalesce", "calls"), [(1, 7), (3, 3), (1000, 1)])
def test_notifications_that_are_heard_together_wake_as_few_as_is_asked_for(supervisor, coalesce, calls):
    supervisor.settings.now = replace(supervisor.settings.now, coalesce_notifies=coalesce, queues=("a", "b*"))
    supervisor.db.notifications = [*"aaaa", "bb", "bc", "b", "c"]
    supervisor.events.step(time.monotonic())
    assert supervisor.fleet.pending_wakeups == calls


@pytest.mark.parametrize(
    "payload",
    [
        "@refused:claim_jobs: ERROR: anything",
        "@pooler",
        "@unknown",
        "@",
        "@beat:",
        "@order:",
        "@due:now",
        "@cancel:\n",
        "@table",
    ],
)
def test_no_notification_puts_words_into_the_log(supervisor, caplog, payload):
    supervisor.db.notifications = [payload]
    supervisor.events.step(time.monotonic())
    assert caplog.records == []
    assert not supervisor.events._pooler_seen
    supervisor.db.setup.listen_disabled = True
    supervisor.db.happened = [Pooler(), Rejected("claim/claim_jobs", "ERROR: it is so")]
    supervisor.events.step(time.monotonic())
    assert ["a pooler stands" in caplog.text, "claim_jobs: ERROR: it is so" in caplog.text] == [True, True]


def nothing_is_due(supervisor, now):
    supervisor.loop._full_turn_by = supervisor.fleet.plan_at = float("inf")
    supervisor.poll._at = supervisor.board_reader._at = supervisor.db._again_at = now + 60


@pytest.mark.parametrize("call", ["called", "all_idle_called", "database_up", "the maintenance process"])
def test_a_call_that_came_after_the_plan_of_a_turn_is_not_waited_with(supervisor, call):
    """It comes with the last answers of a turn; the next one would begin with a wait for something else to happen, up to a second."""
    now = time.monotonic()
    nothing_is_due(supervisor, now)
    assert supervisor.loop.wake_at(now) > now
    fleet = supervisor.fleet
    match call:
        case "called":
            fleet.request_wakeups()
        case "all_idle_called":
            fleet.on_fork(next(fleet.workers()), pid=1, incarnation=1, now=now, started=0, jitter=0.0)
            fleet.request_all_wakeups()
        case "database_up":
            fleet.on_database_up(now)
        case "the maintenance process":
            fleet.kinds_to_wake.add(MAINTENANCE)
    assert supervisor.loop.wake_at(now) <= now


@pytest.mark.parametrize("found", [False, True])
def test_a_look_that_finds_a_straggler_is_followed_by_a_whole_turn(supervisor, monkeypatch, found):
    now = time.monotonic()
    slot = next(supervisor.fleet.workers())
    supervisor.fleet.on_fork(slot, pid=1, incarnation=1, now=now, started=0, jitter=0.0)
    supervisor.fleet.on_message(slot, Ready(1, 7), now)
    nothing_is_due(supervisor, now)
    offloader = supervisor.offloader
    offloader.hurry(now)
    work = CurrentWork(Phase.RUNNING, 1, 9, 5, 1, 1, 5, 0, now, now + 60)

    def read(at):
        offloader._due_at = float("inf")
        supervisor.fleet.on_held_claim(slot, HeldClaim(work, at + 60) if found else None)

    monkeypatch.setattr(offloader, "_read", read)
    turns = []
    monkeypatch.setattr(supervisor.loop, "_wake_first", lambda _now: turns.append(_now) or True)
    supervisor.loop.turn()
    assert len(turns) == found


def test_who_is_drained_does_not_ask_whether_anything_is_left(supervisor):
    """It would turn, and ask, for as long as the last job runs: at once, again and again."""
    supervisor.fleet.limits.until_empty = True
    assert supervisor.until_empty.wake_at(0.0) == 0.0
    supervisor.fleet.enter_state(RunState.DRAINING, time.monotonic())
    assert supervisor.until_empty.wake_at(0.0) == float("inf")


def test_to_drain_twice_is_to_drain(supervisor):
    """A second TERM hands back what runs; somebody on another page who presses the button too does not mean that."""
    now = time.monotonic()
    order = FleetCommand(1, "drain", {}, "anna")
    assert supervisor.signals.carry_out(order, now) == {"workers": 4, "running": 0}
    assert supervisor.signals.carry_out(order, now + 60) == {"workers": 4, "running": 0}
    assert supervisor.fleet.run_state is RunState.DRAINING
    with pytest.raises(CommandRejected, match="leaving already"):
        supervisor.signals.carry_out(FleetCommand(2, "add", {}, "anna"), now + 60)


def test_orders_do_what_the_signals_of_the_same_meaning_do(supervisor):
    now = time.monotonic()
    assert [
        supervisor.signals.carry_out(FleetCommand(1, name, {}, "anna"), now)["workers"]
        for name in ("add", "add", "remove")
    ] == [5, 6, 5]
    generation = supervisor.fleet.generation
    supervisor.settings._reload = lambda: (_ for _ in ()).throw(ValueError("bad"))
    assert supervisor.signals.carry_out(FleetCommand(1, "reload", {}, "anna"), now) is None, (
        "answered once a worker has loaded the code, or could not"
    )
    assert supervisor.reload_answers._waiting == [(1, "the settings do not load, the old ones stay: bad")]
    assert supervisor.fleet.generation == generation + 1


def test_a_session_that_is_lost_while_a_death_is_told_of_gives_up_its_number_before_a_child_gets_it(
    supervisor, monkeypatch
):
    """What is still waited for under that number cannot be waited for anew.

    The parent died of it.
    """
    number, other = os.pipe()
    lost, planned = [], []
    monkeypatch.setattr(supervisor.db, "fileno", lambda: -1 if lost else number)
    monkeypatch.setattr(supervisor.db, "step", lambda _now: None)
    supervisor.session.step(0.0)

    def lose(_now):
        os.close(number)
        lost.append(number)

    def think(_fleet, _now):
        os.dup2(other, number)
        supervisor.selector.register(number, selectors.EVENT_READ, 0)
        supervisor.selector.unregister(number)
        planned.append(number)
        return Plan()

    monkeypatch.setattr(
        supervisor.signals._reaper, "reap", lambda now: monkeypatch.setattr(supervisor.db, "step", lose)
    )
    monkeypatch.setattr(
        supervisor.board_reader, "step", lambda _now: monkeypatch.setattr(supervisor.db, "step", lambda _now: None)
    )
    monkeypatch.setattr("jobherd.supervisor.loop.plan", think)
    monkeypatch.setattr(supervisor.signal_pipe, "read", lambda: {signal.SIGCHLD})
    supervisor.signals.register(supervisor.selector)
    os.write(supervisor.signal_pipe._write, b"x")
    supervisor.loop.turn()
    assert planned
    assert supervisor.session._waits_on[0] == -1
    os.close(number)
    os.close(other)


_MOVES = """
import os, signal, sys
if os.fork():
    os.setpgid(0, os.getpgid(os.getppid()))
    print(end="x", flush=True)
signal.pause()
"""


def test_who_has_left_its_group_is_killed_with_those_it_has_left_there(supervisor):
    """A signal to a group succeeds if it reaches anybody, and a kill is sent once.

    Such a child would have lived, and run its job, for ever.
    """
    slot = next(supervisor.fleet.workers())
    with subprocess.Popen([sys.executable, "-c", _MOVES], process_group=0, stdout=subprocess.PIPE) as child:
        assert child.stdout.read(1) == b"x"
        supervisor.fleet.on_fork(slot, pid=child.pid, incarnation=1, now=time.monotonic(), started=0, jitter=0.0)
        supervisor.children._signal(slot, signal.SIGKILL, group=True)
        try:
            assert child.wait(LIMIT) == -signal.SIGKILL
            assert child.stdout.read() == b"", "nobody is left who could say anything"
        finally:
            child.kill()


@pytest.mark.parametrize("supervisor", ["never_read_before"], indirect=True)
def test_it_reads_no_statement_later(supervisor, monkeypatch):
    """There may be no file left to be opened: a parent died of that, in the middle of its work."""
    monkeypatch.setattr(sql, "files", lambda *_: pytest.fail("a statement is read now"))
    for name in (
        "wake/disable_notify",
        "recover/terminate_child_sessions",
        "recover/unregister_supervisor",
        "control/find_cancels",
    ):
        assert sql.numbered(name, supervisor.settings.now.schema)[0]
