"""The outcome of the job that a child process ran when it died."""

from __future__ import annotations

import pytest

from jobherd.supervisor.crash.crash_outcome import CrashOutcome, crash_outcome, delay
from jobherd.supervisor.crash.dead_child import SELDOM, DeadChild
from jobherd.supervisor.crash.postmortem import PostMortem
from jobherd.supervisor.crash.recovery import CrashRecovery
from jobherd.supervisor.policy.child_exit import Death, Exit
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.supervisor.policy.stop_sequence import Stage, StopReason, StopSequence
from jobherd.workers.ipc.counters import Policy
from jobherd.workers.ipc.current_work import CurrentWork, Phase

POLICY = Policy("a:b", max_attempts=5, max_crashes=3, backoff=(30.0, 2.0, 0.2, 3600.0))


def death(cause="signal", why=None, stage=Stage.KILLED):
    stop_sequence = None if why is None else StopSequence(why, 0.0, 9, 5, stage=stage)
    return Death(0, "worker", 1, 1, 1, Exit(None, 9), cause, True, stop_sequence, 0.0, 1.0)


def now(*, attempts=1, crashes=0, phase=Phase.RUNNING):
    return CurrentWork(phase, 1, 9, 5, 1, attempts, 5, crashes)


def taken(**counts):
    """Return a record of a claimed job that had not started."""
    return now(phase=Phase.CLAIMING, **counts)


@pytest.mark.parametrize(
    ("record", "dead", "verdict"),
    [
        (now(), death(), CrashOutcome("retry", "WORKER_CRASHED", 0.0, 1)),
        (now(attempts=2, crashes=1), death(), CrashOutcome("retry", "WORKER_CRASHED", 60.0, 1)),
        (now(attempts=3, crashes=2), death(), CrashOutcome("failed", "WORKER_CRASHED", 0.0, 1)),
        (now(attempts=5), death(), CrashOutcome("failed", "WORKER_CRASHED", 0.0, 1)),
        (now(), death("exit"), CrashOutcome("retry", "WORKER_CRASHED", 0.0, 1)),
        (now(attempts=2), death("timeout", StopReason.TIMEOUT), CrashOutcome("retry", "JOB_TIMEOUT", 60.0)),
        (now(attempts=5), death("timeout", StopReason.TIMEOUT), CrashOutcome("failed", "JOB_TIMEOUT")),
        (now(), death("cancel", StopReason.CANCEL, Stage.TERMINATED), CrashOutcome("cancelled", "JOB_CANCELLED")),
        (now(), death("drain", StopReason.DRAIN), CrashOutcome("abandoned", None)),
        (now(), death("quit", StopReason.QUIT), CrashOutcome("abandoned", None)),
        (now(), death("stopped", StopReason.STOPPED), CrashOutcome("abandoned", None)),
        (now(), death("claim_lost", StopReason.CLAIM_LOST), None),
        # the hook `after_job` of a job without a timeout
        (now(), death("hook", StopReason.HOOK), CrashOutcome("retry", "WORKER_CRASHED", 0.0, 1)),
        (taken(), death(), CrashOutcome("abandoned", "WORKER_CRASHED", 0.0, 1)),
        (taken(attempts=2, crashes=1), death("exit"), CrashOutcome("abandoned", "WORKER_CRASHED", 60.0, 1)),
        # the last attempt has not started
        (taken(attempts=5), death("oom"), CrashOutcome("abandoned", "WORKER_CRASHED", 0.0, 1)),
        (taken(crashes=2), death(), CrashOutcome("failed", "WORKER_CRASHED", 0.0, 1)),
        (taken(), death("drain", StopReason.DRAIN), CrashOutcome("abandoned", None)),
        (taken(), death("cancel", StopReason.CANCEL, Stage.TERMINATED), CrashOutcome("cancelled", "JOB_CANCELLED")),
        (taken(), death("claim_lost", StopReason.CLAIM_LOST), None),
        # The job was interrupted, and its process crashed before the supervisor signaled it.
        (now(), death("signal", StopReason.CANCEL, Stage.INTERRUPTED), CrashOutcome("retry", "WORKER_CRASHED", 0.0, 1)),
    ],
)
def test_crash_outcome_for_each_cause_of_death(record, dead, verdict):
    assert crash_outcome(record, POLICY, dead, 0.0) == verdict


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 30), (2, 60), (3, 120), (7, 1920), (8, 3600), (32767, 3600)])
@pytest.mark.promise("A23")
def test_backoff_doubles_up_to_its_maximum_with_twenty_percent_jitter(attempts, seconds):
    assert delay(POLICY, attempts, 0.0) == seconds
    assert delay(POLICY, attempts, -1.0) == pytest.approx(seconds * 0.8)
    assert delay(POLICY, attempts, 1.0) == pytest.approx(min(seconds * 1.2, 3600))


@pytest.mark.parametrize("backoff", [(1.0, 1e6, 0.2, 3600.0), (0.001, 86_400_000.0, 0.0, 3600.0)])
def test_backoff_that_overflows_is_limited_to_its_maximum(backoff):
    assert delay(Policy(backoff=backoff), 100, 0.0) == 3600
    assert delay(Policy(backoff=(0.0, *backoff[1:])), 100, 0.0) == 0


REPORT = PostMortem(
    sentence="it died", cause="signal", exit_code=None, signal="SIGKILL", core_dumped=False, core=None, phase="idle", max_rss=0, cpu_user=0.0,
    cpu_system=0.0, oom=False, memory=None, child_age=1.0, job_age=None, lease_age=None, code_version=None, stack="", log_tail="",
)  # fmt: skip


class Refusing:
    """Replaces the database: rejects every request and records its name."""

    def __init__(self):
        self.letters = []

    def ask(self, name, parameters, answered, refused=None):
        self.letters.append(name)
        answered(None)


def test_rejected_request_is_retried_with_backoff_and_at_once_after_a_reconnect():
    post = Refusing()
    recovery = CrashRecovery(post, SlotTable(Limits()), host="here")
    recovery.take(DeadChild(death(), now(), POLICY, REPORT))
    clock, rests = 0.0, []
    for _ in range(20):
        recovery.step(clock)
        rests.append(recovery.wake_at(clock) - clock)
        clock = recovery.wake_at(clock)
    assert rests[0] <= 0.05
    assert all(later > 1.1 * earlier for earlier, later in zip(rests[:6], rests[1:7], strict=True))
    assert all(SELDOM * 0.7 < rest <= SELDOM for rest in rests[8:]), rests
    assert post.letters == ["recover/terminate_child_sessions"] * 20
    recovery.hurry()
    assert recovery.wake_at(clock) == 0.0
    recovery.step(clock)
    assert recovery.wake_at(clock) - clock <= 0.05, "the backoff starts again"
    assert not recovery.recovered


class Protected:
    """Replaces the database: the session of the dead child stays, and all other requests are answered.

    `refused` is the number of sessions that the supervisor's role must not terminate.
    """

    def __init__(self, refused="1"):
        self.refused = refused
        self.letters = []

    def ask(self, name, parameters, answered, refused=None):
        self.letters.append(name)
        answered([("1", self.refused)] if name == "recover/terminate_child_sessions" else [])


def test_recovery_waits_one_lease_for_a_session_that_it_must_not_terminate(caplog):
    post = Protected()
    recovery = CrashRecovery(post, SlotTable(Limits()), host="here")
    recovery.take(DeadChild(death("claim_lost"), CurrentWork(Phase.IDLE), POLICY, REPORT))
    clock = 100.0
    while recovery._cases and clock < 200:
        recovery.step(clock)
        if recovery._cases:
            clock = max(clock, recovery.wake_at(clock))
    assert 115.0 <= clock < 116.0
    assert post.letters[-1] == "recover/requeue_child"
    assert len(recovery.recovered) == 1
    assert "must not end the database session" in caplog.text


def test_recovery_waits_indefinitely_for_a_terminated_session_to_end():
    post = Protected(refused="0")
    recovery = CrashRecovery(post, SlotTable(Limits()), host="here")
    recovery.take(DeadChild(death("claim_lost"), CurrentWork(Phase.IDLE), POLICY, REPORT))
    clock = 100.0
    while clock < 200:
        recovery.step(clock)
        clock = max(clock, recovery.wake_at(clock))
    assert set(post.letters) == {"recover/terminate_child_sessions"}
    assert not recovery.recovered
