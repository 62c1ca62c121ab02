"""Timeouts, cancels and drains: what interrupts a job, and that nothing else is interrupted."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import deque

import pytest

from jobherd.handlers._run.dispositions import JobCancelled, JobInterrupted, JobTimeout
from jobherd.workers.ipc.current_work import Interruption, Reason
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.process.interrupt import Interrupts
from jobherd.workers.process.wakeup import Wake
from tests.support.gate import Gate
from tests.support.patience import LIMIT
from tests.support.seats import Bench


def test_a_job_past_its_timeout_is_interrupted_and_its_child_is_not_reused(bench: Bench):
    child = bench.start()
    job = bench.enqueue("act:slow")
    child.nudge()
    row = bench.wait(job, "retrying")
    assert (row["error_code"], row["attempts"]) == ("JOB_TIMEOUT", 1)
    assert "0.3 s" in row["error"]
    ran = bench.ask("SELECT extract(epoch FROM finished_at - started_at)::float AS s FROM jobherd.attempts")[0]["s"]
    assert 0.3 <= ran < 600, "and not the hour that its handler sleeps"
    assert child.wait() == EXIT_RECYCLE
    assert next(counts.timeouts for counts in child.board.tally.kind_counts() if counts.name == "act:slow") == 1


def test_the_job_s_own_timeout_is_stronger_than_the_kind_s(bench: Bench, gate: Gate):
    child = bench.start()
    job = bench.enqueue("act:gated_job", options={"timeout": 0.2}, name="a")
    child.nudge()
    assert bench.wait(job, "retrying")["error_code"] == "JOB_TIMEOUT"


def test_a_handler_that_swallows_its_timeout_is_asked_again_each_second_and_its_result_counts(bench: Bench):
    child = bench.start()
    job = bench.enqueue("act:stubborn")
    child.nudge()
    assert bench.wait(job, "completed")["result"] == "swallowed"
    assert child.wait() == EXIT_RECYCLE


def test_a_statement_that_a_handler_waits_for_is_cancelled_on_the_server(bench: Bench):
    child = bench.start()
    job = bench.enqueue("act:queries", dsn=bench.dsn)
    child.nudge()
    bench.wait(job, "retrying")
    assert child.wait() == EXIT_RECYCLE
    asleep = "SELECT query FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%%pg_sleep(3600)' AND pid <> pg_backend_pid()"
    bench.wait_until(lambda: bench.ask(asleep) == [], "the end of the statement")


@pytest.mark.parametrize("kind", ["act:gated", "act:waits"])
def test_a_cancelled_job_is_interrupted(bench: Bench, gate: Gate, kind: str):
    child = bench.start()
    job = bench.enqueue(kind, name="a")
    child.nudge()
    gate.wait_arrival("a")
    assert bench.ask("SELECT jobherd.cancel(%(id)s) AS a", id=job)[0]["a"] == "cancelling"
    child.interrupt(Reason.CANCEL)
    row = bench.wait(job, "cancelled")
    assert row["error_code"] == "JOB_CANCELLED"
    assert child.wait() == EXIT_RECYCLE


def test_a_drained_job_goes_back_with_its_attempt(bench: Bench, gate: Gate):
    child = bench.start(most_claimed=2)
    jobs = [bench.enqueue("act:gated", name=name) for name in "ab"]
    child.nudge()
    gate.wait_arrival("a")
    child.interrupt(Reason.DRAIN)
    assert child.wait() == EXIT_RECYCLE
    assert [(bench.job(job)["state"], bench.job(job)["attempts"]) for job in jobs] == [("ready", 0), ("ready", 0)]


def test_a_cancel_of_a_job_of_the_batch_that_has_not_started_keeps_it_from_starting(bench: Bench, gate: Gate):
    jobs = [bench.enqueue("act:gated", name=name) for name in "abc"]
    child = bench.start(most_claimed=3)
    arrival = gate.wait_arrival("a")
    child.interrupt(Reason.CANCEL, job=jobs[1])
    arrival.open()
    gate.wait_arrival("c").open()
    assert [bench.wait(job, "completed", "cancelled")["state"] for job in jobs] == [
        "completed",
        "cancelled",
        "completed",
    ]
    assert bench.job(jobs[1])["started_at"] is None
    assert child.dismiss() == EXIT_REQUESTED


def test_an_order_that_names_another_claim_is_not_obeyed(bench: Bench, gate: Gate):
    child = bench.start()
    job = bench.enqueue("act:gated", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    child.board.interrupt(Interruption(Reason.CANCEL, 999_999, job))
    os.kill(child.pid, signal.SIGUSR2)
    arrival.open()
    bench.wait(job, "completed")
    assert child.dismiss() == EXIT_REQUESTED


def test_an_old_order_does_not_reach_the_next_job(bench: Bench, gate: Gate):
    child = bench.start()
    first, then = bench.enqueue("act:gated", name="a"), bench.enqueue("act:gated", name="b")
    child.nudge()
    arrival = gate.wait_arrival("a")
    now = child.board.now()
    arrival.open()
    arrival = gate.wait_arrival("b")
    child.board.interrupt(Interruption(Reason.CANCEL, now.token, first))
    os.kill(child.pid, signal.SIGUSR2)
    arrival.open()
    assert bench.wait(then, "completed")["result"] == ""


def test_the_parent_s_sigterm_past_the_deadline_interrupts_once_more(bench: Bench, gate: Gate):
    child = bench.start()
    job = bench.enqueue("act:gated", name="a")
    child.nudge()
    gate.wait_arrival("a")
    now = child.board.now()
    child.board.interrupt(Interruption(Reason.CANCEL, now.token, job))
    os.kill(child.pid, signal.SIGUSR2)
    os.kill(child.pid, signal.SIGTERM)
    bench.wait(job, "cancelled")


def test_an_order_that_came_right_before_a_call_that_blocks_is_heard_with_the_sigterm(bench: Bench, gate: Gate):
    """Python looks for signals before and after such a call. The supervisor sends the SIGTERM a grace period later."""
    child = bench.start()
    job = bench.enqueue("act:missed", name="a")
    child.nudge()
    arrival = gate.wait_arrival("a")
    child.interrupt(Reason.CANCEL)
    arrival.open()
    arrival.wait_gone()

    def ended() -> bool:
        os.kill(child.pid, signal.SIGTERM)  # again and again: it may come right before that call as well
        return bench.job(job)["state"] == "cancelled"

    bench.wait_until(ended, "the end of the job")


@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGALRM], ids=["the parent's SIGTERM", "a ring"])
def test_a_second_word_does_not_reach_what_is_made_of_the_end(bench: Bench, gate: Gate, word: signal.Signals):
    """It was raised there, so that a job that somebody had cancelled, and that had ended, was taken for one that cannot be judged, and ran again."""
    child = bench.start()
    job = bench.enqueue("act:explains", name="a")
    child.nudge()
    gate.wait_arrival("a")
    child.interrupt(Reason.CANCEL)
    explains = gate.wait_arrival("a explains")
    os.kill(child.pid, word)
    explains.open("in its own words")
    row = bench.wait(job, "cancelled")
    assert "acting.Explained: in its own words" in row["history"][0]["traceback"]
    assert child.wait() == EXIT_RECYCLE


def test_an_exclusive_job_ends_before_the_lease_can_lapse(bench: Bench, gate: Gate):
    # it is to be out a fifth of that before the end, which leaves time for a busy machine
    child = bench.start(lease=200.0)
    job = bench.enqueue("act:exclusive", name="a")
    child.nudge()
    gate.wait_arrival("a")
    bench.control.lease_deadline = time.monotonic() + 600
    child.close_wake()
    lapses = bench.control.lease_deadline = time.monotonic() + 41.0
    os.kill(child.pid, signal.SIGALRM)  # any ring looks at the lease again
    assert child.wait() == EXIT_RECYCLE
    assert time.monotonic() < lapses
    assert (bench.job(job)["state"], bench.job(job)["attempts"]) == ("ready", 0)


def test_jobs_that_end_just_at_their_timeout_have_one_outcome_and_the_next_job_none_of_it(bench: Bench):
    """Each job of the edge is followed by one that must come through."""
    dice = random.Random(7)
    edges = [bench.enqueue("act:edge", seconds=0.02 + dice.uniform(-0.001, 0.001)) for _ in range(60)]
    others = [bench.enqueue("act:quick") for _ in range(200)]
    codes = set()
    while bench.ask("SELECT 1 FROM jobherd.ready LIMIT 1"):
        codes.add(bench.start(most_claimed=20).wait_or_idle())
    assert codes <= {EXIT_REQUESTED, EXIT_RECYCLE}
    for job in edges:
        row = bench.wait(job, "completed", "retrying")
        assert (row["state"], row["error_code"]) in {("completed", None), ("retrying", "JOB_TIMEOUT")}
        assert len(row["history"]) == 1
    assert all(bench.wait(job, "completed")["result"] == "through" for job in others)


@pytest.fixture
def interrupts():
    """An alarm in this process, for what needs thousands of tries; the handlers of before are put back."""
    saved = {
        number: signal.getsignal(number)
        for number in (signal.SIGALRM, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    }
    read, write = os.pipe()
    board = StatusBoard("alarm")
    interrupts = Interrupts(board, Wake(read, parent=os.getppid()))
    interrupts.restore()
    yield interrupts
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in saved.items():
        signal.signal(number, handler)
    board.close()
    os.close(read)
    os.close(write)


def attempt(interrupts: Interrupts, job: int, seconds: float, timeout: float) -> str:
    """What execute.py does around a handler, word by word."""
    started = time.monotonic()
    interrupts.enter(job, deadline=started + timeout, timeout=timeout)
    try:
        interrupts.open = True
        if interrupts.pending:
            interrupts.check()
        ending = spin(started + seconds)
        interrupts.open = False
    except BaseException as raised:
        interrupts.open = False
        ending = type(raised).__name__
    interrupts.leave()
    return ending


def spin(until: float) -> str:
    while time.monotonic() < until:
        pass
    return "through"


@pytest.mark.timeout(0)
def test_two_thousand_handlers_that_return_at_their_timeout_give_or_take_a_millisecond(interrupts: Interrupts):
    dice = random.Random(1)
    found = {"through": 0, "JobTimeout": 0}
    number = 0
    until = time.monotonic() + 5 * LIMIT
    # A process that is held up returns late: on a busy machine more of them are needed.
    while number < 2000 or (min(found.values()) < 300 and time.monotonic() < until):
        number += 1
        found[attempt(interrupts, number, 0.002 + dice.uniform(-0.001, 0.001), 0.002)] += 1
        spin(time.monotonic() + 0.0005)  # our own code: nothing may be raised here
    assert min(found.values()) >= 100, found


def test_an_order_that_came_before_its_claim_was_known_here_is_heard_when_the_claim_begins(interrupts: Interrupts):
    """The answer to a claim may be on its way when the job is cancelled.

    Its signal finds nobody whom it means.
    """
    interrupts._board.interrupt(Interruption(Reason.CANCEL, 1, 3))
    interrupts.begin(1, range(1, 9))
    assert interrupts.pending == {3: Reason.CANCEL}
    interrupts.end()
    interrupts.begin(2, range(1, 9))
    assert not interrupts.pending


@pytest.mark.timeout(0)
def test_an_order_at_any_moment_reaches_its_job_or_nobody(interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch):
    """A second process fires some thousand orders a second; an exception outside a job would end this test."""
    # Raised inside a destructor, or what is called at a collection, an interruption goes no
    # further: the product's timer raises it again. Python tells the hook of it, and pytest's is
    # written in Python: the next order could be raised within.
    monkeypatch.setattr(sys, "unraisablehook", deque(maxlen=0).append)
    board = interrupts._board
    me = os.getpid()
    shooter = os.fork()
    if shooter == 0:
        try:
            dice = random.Random(3)
            while os.getppid() == me:
                board.interrupt(Interruption(Reason.CANCEL, 1, dice.randint(1, 8)))
                os.kill(me, signal.SIGUSR2)
        finally:
            os._exit(0)
    try:
        found = {"through": 0, "JobCancelled": 0}
        begun = time.monotonic()
        while time.monotonic() < begun + 4 or (found["JobCancelled"] < 50 and time.monotonic() < begun + LIMIT):
            interrupts.begin(1, range(1, 9))
            for job in range(1, 9):
                found[attempt(interrupts, job, 0.0002, 10.0)] += 1
            interrupts.end()
    finally:
        os.kill(shooter, signal.SIGKILL)
        os.waitpid(shooter, 0)
    assert found["JobCancelled"] >= 50


@pytest.mark.timeout(0)
def test_a_timer_that_rings_early_is_armed_again(interrupts: Interrupts):
    interrupts.enter(1, deadline=time.monotonic() + 0.05, timeout=0.05)
    interrupts.leave()
    assert attempt(interrupts, 2, 10.0, 0.2) == "JobTimeout"


HUNDRED_YEARS = 100 * 365 * 86400.0


@pytest.mark.timeout(0)
def test_a_process_held_up_while_the_timer_is_set_is_not_taken_for_changed(
    interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
):
    """Stopped, or starved, between two looks at the clock.

    Then the timer rings later than was reckoned, and no job has touched it.
    """
    arm = signal.setitimer

    def held_up(*timer: float) -> object:
        time.sleep(0.3)
        return arm(*timer)

    assert interrupts.timer.rearm_if_touched(), "nothing was armed yet"
    with monkeypatch.context() as slow:
        slow.setattr(signal, "setitimer", held_up)
        assert attempt(interrupts, 1, 0.0, 60.0) == "through"
    assert interrupts.timer.rearm_if_touched()
    assert attempt(interrupts, 2, 0.0, HUNDRED_YEARS) == "through"
    assert interrupts.timer.rearm_if_touched()


@pytest.mark.timeout(0)
def test_a_timer_that_rings_during_the_look_at_it_was_not_moved(
    interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
):
    look = signal.getitimer
    attempt(interrupts, 1, 0.0, 60.0)

    def stage(which: int) -> tuple[float, float]:
        found = look(which)
        os.kill(os.getpid(), signal.SIGALRM)
        return found

    with monkeypatch.context() as ringing:
        ringing.setattr(signal, "getitimer", stage)
        assert interrupts.timer.rearm_if_touched()
        interrupts.enter(2, deadline=time.monotonic() + 60, timeout=60)
        assert interrupts.timer.rearm_if_touched()
    assert attempt(interrupts, 3, 10.0, 0.05) == "JobTimeout"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("timer", [(0.0,), (5.0,), (100.0,), (100.0, 100.0)], ids=str)
def test_a_timer_that_a_job_has_set_for_itself_is_put_right(interrupts: Interrupts, timer: tuple[float, ...]):
    for first in (1, 3):  # also where nothing of ours was armed yet, unless the job only stops what does not run
        if first == 3 or timer != (0.0,):
            signal.setitimer(signal.ITIMER_REAL, *timer)
            assert not interrupts.timer.rearm_if_touched()
        assert interrupts.timer.rearm_if_touched()
        assert attempt(interrupts, first + 1, 10.0, 0.05) == "JobTimeout"


@pytest.mark.timeout(0)
def test_who_puts_the_timer_back_as_he_found_it_has_not_moved_it(interrupts: Interrupts):
    """As libraries do that limit a call by a timer of their own.

    What they put back is late by what they took.
    """
    attempt(interrupts, 1, 0.0, 1000.0)
    found = signal.setitimer(signal.ITIMER_REAL, 5.0)
    signal.setitimer(signal.ITIMER_REAL, found[0] + 2.0, found[1])
    assert interrupts.timer.rearm_if_touched()
    arming = interrupts.timer.rings_at
    assert arming == float("inf"), "the next job arms it again"
    assert attempt(interrupts, 2, 10.0, 0.05) == "JobTimeout"


@pytest.mark.timeout(0)
def test_the_timer_costs_one_system_call_for_many_jobs(interrupts: Interrupts):
    calls = 0
    arm = interrupts.timer.arm

    def counted(at: float) -> None:
        nonlocal calls
        calls += 1
        arm(at)

    interrupts.timer.arm = counted
    for job in range(1000):
        attempt(interrupts, job, 0.0, 60.0)
    assert calls == 1


def test_interrupts_are_no_exceptions_that_a_handler_catches_by_accident():
    assert not issubclass(JobInterrupted, Exception)
    assert issubclass(JobTimeout, KeyboardInterrupt)
    assert issubclass(JobCancelled, JobInterrupted)
