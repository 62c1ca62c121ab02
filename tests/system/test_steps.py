"""A process dies, is stopped or gets a signal exactly at one step of a protocol.

A failpoint (`workers/system/failpoints.py`) or a lock holds the process at that step.

Random faults hit such a step once in a thousand times; each test here hits it on purpose. Leases are long
where something other than an expired lease must requeue a job.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.points import Points
from tests.support.processes import is_running, wait_for_exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Fleet, Stage
    from tests.support.gate import Gate

LONG = "300s"
BEFORE_HANDLERS = ("child.born", "child.forked")
"""Points of a child process before and after it requests a signal at its supervisor's death.

At both, it still has the supervisor's signal handlers and has not set its own.
"""
HELD_UP = """
CREATE FUNCTION t_held_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM set_config('client_connection_check_interval', '0', false), pg_advisory_xact_lock_shared(20);
    RETURN NEW;
END $$;
CREATE TRIGGER t_held_up BEFORE INSERT ON jobherd.running FOR EACH ROW EXECUTE FUNCTION t_held_up();
CREATE TRIGGER t_held_up BEFORE INSERT ON jobherd.history FOR EACH ROW EXECUTE FUNCTION t_held_up();
"""
"""A session that waits here does not notice that its client is gone: only the supervisor ends it."""
HOLD_UP = "SELECT pg_advisory_xact_lock(20)"
"""With this, another session holds up a claim or the recording of an outcome before its last step."""
WAITING = """
SELECT c.pid, a.pid FROM jobherd.children c JOIN pg_stat_activity a ON a.pid = c.backend_pid AND a.backend_start = c.backend_started
 WHERE c.kind = 'worker' AND a.wait_event_type = 'Lock'
"""


REGISTERING = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'jobherd:supervisor:%' AND wait_event_type = 'Lock'
"""


@pytest.fixture
def points(tmp_path: Path) -> Points:
    return Points(tmp_path / "points")


def fleet_with(stage: Stage, points: Points, **settings: Any) -> Fleet:
    """Start a supervisor whose processes honor failpoints and whose dead child processes are replaced at once."""
    return stage.run_fleet(environment=points.environment, respawn_initial="10ms", respawn_max="100ms", **settings)


def fate(stage: Stage, job: int) -> tuple[str, int, int, list[str]]:
    """Return a job's state, attempts, crashes, and the outcome of each attempt."""
    row = stage.job(job)
    return row["state"], row["attempts"], row["crashes"], [attempt["outcome"] for attempt in row["history"]]


def moment(stage: Stage, seconds: float) -> object:
    """Return the timestamp this many seconds from now, by the database's clock."""
    return stage.call("SELECT clock_timestamp() + make_interval(secs => %s)", seconds)


def wait_clock(stage: Stage, until: object) -> None:
    """Wait until the database's clock has passed a timestamp."""
    stage.run("SELECT pg_sleep_until(%s)", until)


def wait_stopped(stage: Stage, pid: int) -> None:
    """Wait until a process is stopped."""
    stage.wait(
        lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T",
        f"process {pid} to be stopped",
    )


def wait_obeyed(fleet: Fleet) -> None:
    """Wait until a supervisor has handled the signals sent so far.

    It handles signals that arrive together in one turn, and these two only after that.
    """
    for _ in range(2):
        before = len(fleet.said(is_course))
        fleet.signal(signal.SIGUSR1)
        fleet.wait_log(is_course, count=before + 1)


def is_course(event: dict[str, Any]) -> bool:
    """Return whether a line is the status that a supervisor logs after SIGUSR1."""
    return " wanted, " in event.get("message", "")


@contextmanager
def stranger(stage: Stage, *statements: str) -> Iterator[None]:
    """Hold locks in another database session within the block."""
    with psycopg.connect(stage.dsn, application_name="a stranger") as connection:
        for statement in statements:
            connection.execute(statement)
        yield


def kill_who_waits(stage: Stage) -> int:
    """Kill the worker whose statement waits for a lock, and return its pid once its session has ended.

    The lock is still held then.
    """
    pid, backend = stage.wait(lambda: next(iter(stage.run(WAITING)), None), "a child whose statement waits for a lock")
    os.kill(pid, signal.SIGKILL)
    stage.wait(
        lambda: not stage.run("SELECT pid FROM pg_stat_activity WHERE pid = %s", backend),
        "the end of the dead child's session",
    )
    return pid


# -- just forked


def test_child_process_exits_when_its_supervisor_dies_right_after_the_fork(stage: Stage, points: Points):
    fleet = fleet_with(stage, points, workers=2, lease=LONG)
    points.watch()
    held = [points.hold(name) for name in BEFORE_HANDLERS]
    for pid in fleet.workers().values():
        os.kill(pid, signal.SIGKILL)
    newborn = [one.wait() for one in held]
    known = stage.count("children")
    maintenance = fleet.maintenance()
    os.kill(maintenance, signal.SIGSTOP)  # it would end them, but they must exit without it
    wait_stopped(stage, maintenance)
    fleet.signal(signal.SIGKILL)
    wait_for_exit(fleet.pid)  # not reaped yet: its pid still exists
    job = stage.enqueue("t:noop")
    assert [is_running(pid) for pid in newborn] == [True, True]
    for one in held:
        one.let_go()
    for pid in newborn:
        wait_for_exit(pid)
    os.kill(maintenance, signal.SIGCONT)
    fleet.wait_gone()
    assert [points.seen(pid) - set(BEFORE_HANDLERS) for pid in newborn] == [set(), set()], "they started nothing"
    assert stage.count("children") <= known
    assert fate(stage, job) == ("ready", 0, 0, [])
    assert stage.runs(job) == 0


def test_child_process_exits_on_sigterm_before_it_has_signal_handlers(stage: Stage, points: Points):
    fleet = fleet_with(stage, points, workers=2)
    held = [points.hold(name) for name in BEFORE_HANDLERS]
    for pid in fleet.workers().values():
        os.kill(pid, signal.SIGKILL)
    newborn = [one.wait() for one in held]
    for pid in newborn:
        for signum in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            os.kill(pid, signum)
    for one in held:
        one.let_go()
    for pid in newborn:
        wait_for_exit(pid)
    job = stage.enqueue("t:noop")
    assert stage.wait_state(job, "completed")["attempts"] == 1
    stage.wait(lambda: len(set(fleet.workers().values()) - set(newborn)) == 2, "the replacement workers")
    assert not fleet.said("got SIG"), "the supervisor got none of these signals"
    # An immediate exit does not wait for a child process that never continues.
    last = points.hold("child.born")
    os.kill(next(iter(fleet.workers().values())), signal.SIGKILL)
    last.wait()
    fleet.signal(signal.SIGTERM)
    fleet.wait_log("draining")
    fleet.signal(signal.SIGQUIT)
    assert fleet.wait_exit() == 0
    fleet.wait_gone()


def test_supervisor_handles_signals_while_a_child_process_is_just_forked(stage: Stage, points: Points):
    fleet = fleet_with(stage, points, workers=1)
    for number, name in enumerate(BEFORE_HANDLERS):
        held = points.hold(name)
        os.kill(next(iter(fleet.workers().values())), signal.SIGKILL)
        pid = held.wait()
        for signum in (signal.SIGCHLD, signal.SIGHUP):
            fleet.signal(signum)
        wait_obeyed(fleet)
        assert fleet.said(f"pid {pid}, booting")
        held.let_go()
        fleet.wait_log("reloaded: every worker runs the new code", count=number + 1)
        stage.wait(lambda: len(fleet.workers()) == 1, "the worker of the old code to exit")
    held = points.hold("child.forked")
    os.kill(next(iter(fleet.workers().values())), signal.SIGKILL)
    held.wait()
    fleet.signal(signal.SIGCHLD)
    fleet.signal(signal.SIGTERM)
    fleet.wait_log("draining")
    assert fleet.note_exit() is False
    held.let_go()
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    assert not fleet.said(lambda event: event.get("level") in {"error", "critical"} or "raw" in event)


# -- killed while a statement waits in the server


def test_claim_that_waits_in_the_server_has_no_effect_once_its_worker_is_dead(stage: Stage, gate: Gate):
    stage.run(HELD_UP)
    fleet = stage.run_fleet(workers=2, lease=LONG, poll=LONG)
    for lock in (
        "LOCK TABLE jobherd.running IN SHARE MODE",  # the claim has not begun
        HOLD_UP,  # the claim has removed the job from `ready`, but not yet inserted it into `running`
    ):
        with stranger(stage, lock):
            job = stage.enqueue("t:gate", '{"label": "claimed"}')
            dead = kill_who_waits(stage)
        arrival = gate.wait_arrival("claimed")  # long before the lease expires
        assert arrival.pid != dead
        arrival.open()
        stage.wait_state(job, "completed")
        assert fate(stage, job) == ("completed", 1, 0, ["completed"]), (
            "the claim had no effect, and no crash was counted"
        )
        assert stage.runs(job) == 1
    assert fleet.stop() == 0


def test_outcome_that_waits_in_the_server_is_recorded_when_its_worker_dies(stage: Stage, gate: Gate):
    stage.run(HELD_UP)
    fleet = stage.run_fleet(workers=2, lease=LONG, poll=LONG)
    for lock in (
        "SELECT FROM jobherd.running FOR UPDATE",  # the row in `running` is locked
        HOLD_UP,  # the row in `running` is deleted, and the outcome is not written yet
    ):
        job = stage.enqueue("t:gate", '{"label": "through"}')
        arrival = gate.wait_arrival("through")
        with stranger(stage, lock):
            arrival.open("the outcome")
            assert kill_who_waits(stage) == arrival.pid
            assert stage.state(job) == "running"
        assert stage.wait_state(job, "completed")["result"] == "the outcome"
        assert fate(stage, job) == ("completed", 1, 0, ["completed"])
        assert stage.runs(job) == 1
    assert stage.completed_twice() == []
    assert fleet.stop() == 0


# -- SIGTERM at the steps of a claim and of a job

STEPS = ("claim_jobs.before", "claim_jobs.sent", "claim_jobs.done", "job.announced", "job.started")


def at_each_step(stage: Stage, points: Points, **settings: Any) -> tuple[Fleet, list[int]]:
    """Return a draining supervisor with one worker at each step of its first claim, and the jobs.

    All jobs but one are claimed: the first worker has not claimed yet.
    """
    jobs = stage.enqueue_many("t:noop", len(STEPS))
    held = {name: points.hold(name) for name in STEPS}
    fleet = stage.start(workers=len(STEPS), environment=points.environment, claim_window="0s", claim_size=1, **settings)
    pids = {name: one.wait() for name, one in held.items()}
    assert len(set(pids.values())) == len(STEPS)
    stage.wait(lambda: stage.count("running") == len(STEPS) - 1, "the claims")
    fleet.signal(signal.SIGTERM)
    fleet.wait_log("draining: nothing more is claimed, 2 running")
    return fleet, jobs


def test_worker_that_drains_at_any_step_of_a_claim_releases_its_unstarted_job(stage: Stage, points: Points):
    fleet, jobs = at_each_step(stage, points)
    for token in points.folder.glob("*@*:*"):
        token.unlink()
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    assert sorted(fate(stage, job) for job in jobs) == [
        *[("completed", 1, 0, ["completed"])]
        * 2,  # announced and started: a worker does not check for a drain after the announcement
        *[("ready", 0, 0, [])] * 3,
    ]
    assert (stage.count("running"), stage.count("supervisors")) == (0, 0)
    assert stage.completed_twice() == []


def test_worker_stuck_at_a_step_of_a_claim_past_the_drain_timeout_costs_no_attempt(stage: Stage, points: Points):
    fleet, jobs = at_each_step(stage, points, drain_timeout="0.1s", grace="0.1s")
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    assert sorted(fate(stage, job) for job in jobs) == [*[("ready", 0, 0, [])] * 4, ("ready", 0, 0, ["abandoned"])], (
        "one job had started"
    )
    assert (stage.count("running"), stage.count("supervisors")) == (0, 0)


def test_supervisor_that_gets_sigterm_while_it_registers_leaves_no_registration(stage: Stage, points: Points):
    leaving = points.hold("parent:leaving")
    with stranger(stage, "LOCK TABLE jobherd.supervisors IN SHARE MODE"):
        fleet = stage.start(workers=1, environment=points.environment)
        stage.wait(lambda: stage.run(REGISTERING), "a supervisor whose registration waits")
        fleet.signal(signal.SIGTERM)
        leaving.wait()
    stage.wait(lambda: stage.count("supervisors"), "the registration of a supervisor that exits")
    leaving.let_go()
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    assert stage.count("supervisors") == 0


# -- stopped and continued


def test_worker_stopped_for_longer_than_the_lease_keeps_its_job(stage: Stage, points: Points, gate: Gate):
    fleet = fleet_with(stage, points, workers=1, lease="6s")
    stopped = points.arm("job.started", "stop")
    job = stage.enqueue("t:gate", '{"label": "kept"}')
    pid = points.wait_taken(stopped)
    wait_stopped(stage, pid)
    over = stage.call("SELECT lease_until FROM jobherd.supervisors")
    wait_clock(stage, over)
    neighbour = stage.supervisor()
    assert neighbour.reclaim(lease=6.0, clock=over.timestamp() + 0.001) == (0, 0), (
        "the supervisor has renewed the lease"
    )
    assert stage.state(job) == "running"
    os.kill(pid, signal.SIGCONT)
    arrival = gate.wait_arrival("kept")
    assert arrival.pid == pid
    arrival.open("late")
    assert stage.wait_state(job, "completed")["result"] == "late"
    assert fate(stage, job) == ("completed", 1, 0, ["completed"])
    assert stage.runs(job) == 1
    assert fleet.stop() == 0


def test_supervisor_stopped_past_a_timeout_does_not_punish_a_job_that_ended_in_time(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, lease=LONG, grace="0.1s")
    for turn in range(5):
        job = stage.enqueue("t:gate", f'{{"label": "in time {turn}"}}', timeout=3.0)
        arrival = gate.wait_arrival(f"in time {turn}")
        beyond = moment(stage, 3.4)  # after the timeout and both signals of the stop sequence
        wait_clock(stage, moment(stage, 1.1))  # by now the supervisor has seen the job and its deadline
        fleet.signal(signal.SIGSTOP)
        wait_stopped(stage, fleet.pid)
        with suppress(OSError):
            arrival.open("done")
        if stage.wait_state(job, "completed", "retrying")["state"] == "completed":
            break
        # The machine was too slow for the job to end in time: try another job.
        stage.run("SELECT jobherd.cancel(%s)", job)
        fleet.signal(signal.SIGCONT)
    assert stage.state(job) == "completed"
    wait_clock(stage, beyond)
    fleet.signal(signal.SIGCONT)
    wait_obeyed(fleet)
    following = stage.enqueue("t:gate", '{"label": "following"}')
    after = gate.wait_arrival("following")
    assert after.pid == arrival.pid, "the worker was not killed"
    after.open()
    stage.wait_state(following, "completed")
    assert fate(stage, job) == ("completed", 1, 0, ["completed"])
    assert not fleet.said(
        lambda event: "gets SIG" in event.get("message", "") or "gets a request to stop" in event.get("message", "")
    )
    assert fleet.stop() == 0


# -- several signals


def say_together(stage: Stage, fleet: Fleet, *signums: signal.Signals) -> None:
    """Send a supervisor signals that it receives at the same time."""
    fleet.signal(signal.SIGSTOP)
    wait_stopped(stage, fleet.pid)
    for signum in signums:
        fleet.signal(signum)
    fleet.signal(signal.SIGCONT)


def test_simultaneous_stop_signals_count_as_one_and_signals_after_the_second_change_nothing(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, drain_timeout=LONG)
    jobs = [stage.enqueue("t:gate", f'{{"label": "{label}"}}') for label in ("finishes", "is handed back")]
    finishes, _ = gate.wait_arrival("finishes"), gate.wait_arrival("is handed back")
    say_together(stage, fleet, signal.SIGTERM, signal.SIGINT)
    fleet.wait_log("draining: nothing more is claimed, 2 running")
    wait_obeyed(fleet)
    assert len(fleet.said("got SIG")) == 2
    assert not fleet.said("exiting now"), "Ctrl-C and the service manager may both send a signal"
    finishes.open("in peace")
    assert stage.wait_state(jobs[0], "completed")["attempts"] == 1
    wait_clock(stage, moment(stage, 0.5))
    fleet.signal(signal.SIGTERM)
    fleet.wait_log("exiting now: 1 running jobs are released")
    while not fleet.note_exit():
        fleet.signal(signal.SIGINT)
        fleet.signal(signal.SIGTERM)
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    assert fate(stage, jobs[1]) == ("ready", 0, 0, ["abandoned"])
    assert not fleet.said("quitting")


def test_sigterm_after_sigquit_does_not_slow_down_the_immediate_exit(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, drain_timeout=LONG)
    job = stage.enqueue("t:gate", '{"label": "cut"}')
    gate.wait_arrival("cut")
    say_together(stage, fleet, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)  # handled in the order of their numbers
    assert fleet.wait_exit() == 0
    fleet.wait_gone()
    assert fleet.said("exiting at once: 1 running jobs are killed")
    assert not fleet.said("exiting now")
    assert fate(stage, job)[:3] == ("ready", 0, 0)
    assert (stage.count("running"), stage.count("supervisors")) == (0, 0)
