"""Stacks and profiles of running jobs.

The processes are real: in C code, holding the interpreter's lock, or unable to answer.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import threading
import time
from contextlib import suppress

import pytest

from jobherd.supervisor.database.fleet_commands import CommandRejected, FleetCommand
from jobherd.supervisor.observe import sampler
from jobherd.supervisor.observe.sampler import Sampler
from jobherd.supervisor.policy.child_exit import Exit
from jobherd.supervisor.policy.exits import death_of
from jobherd.supervisor.policy.limits import Limits
from jobherd.supervisor.policy.slot import State
from jobherd.supervisor.policy.slot_table import SlotTable
from jobherd.workers.inspect import flamegraph
from jobherd.workers.inspect.stacks import MAIN, thread_of
from jobherd.workers.ipc.counters import Policy
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.system.threads import describe_threads
from tests.support.patience import LIMIT

JOB = CurrentWork(Phase.RUNNING, child=5, token=8, job=42, started=time.monotonic())


class Place:
    """A slot table of one worker, whose process runs a function of the test, and a sampler."""

    def __init__(self) -> None:
        self.slot_table = SlotTable(Limits(workers=1, max_workers=1))
        self.slot_table.supervisor = 1
        self.boards = [StatusBoard(f"test-{slot.number}") for slot in self.slot_table.slots]
        self.slot = self.slot_table.slots[0]
        self.board = self.boards[0]
        self.sampler = Sampler(self.slot_table, self.boards, self, host="web1")
        self.answers: list[tuple[dict | None, str | None]] = []
        self.pid = 0

    def start(self, work) -> None:
        """Fork a worker that runs job 42 as `work`, which gets a function to call once it has begun."""
        ready, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            with suppress(BaseException):
                faulthandler.register(signal.SIGUSR1, file=self.board.fd, all_threads=True)
                self.board.say(JOB)
                work(lambda: os.write(say, b"."))
            os._exit(1)
        assert select.select([ready], [], [], LIMIT)[0]
        os.close(ready)
        os.close(say)
        self.slot_table.on_fork(self.slot, pid=self.pid, incarnation=1, now=0.0, started=0, jitter=0.0)
        self.slot.state = State.READY

    def answer(self, number, answer=None, *, error=None):
        assert number == 7
        self.answers.append((answer, error))

    def wait(self, count: int = 1) -> tuple[dict | None, str | None]:
        """Step the sampler until there are `count` answers; return the last."""
        until = time.monotonic() + LIMIT
        while len(self.answers) < count:
            assert time.monotonic() < until, "no answer"
            now = time.monotonic()
            self.sampler.step(now)
            select.select([], [], [], min(max(self.sampler.wake_at(now) - now, 0.0), 0.02))
        return self.answers[-1]

    def until(self, condition) -> None:
        """Step the sampler until the condition is true."""
        until = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < until
            self.sampler.step(time.monotonic())
            select.select([], [], [], 0.005)

    def stack(self, job: object = 42, **more):
        self.ask(self.sampler.stack, {"job": job, **more})

    def profile(self, job: object = 42, **more):
        self.ask(self.sampler.profile, {"job": job, **more})

    def ask(self, trade, arguments) -> None:
        try:
            trade(FleetCommand(7, "", arguments, "test"), time.monotonic())
        except CommandRejected as problem:
            self.answers.append((None, str(problem)))

    def close(self) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for board in self.boards:
            board.close()


@pytest.fixture
def place(monkeypatch):
    # on a busy machine, an answer may take long
    monkeypatch.setattr(sampler, "PATIENCE", LIMIT)
    found = Place()
    yield found
    found.close()


def sleep_in_c(begun):
    begun()
    while True:  # the kernel does not resume a sleep that a signal has interrupted
        ctypes.CDLL(None).sleep(3600)


def sleep_with_the_lock(begun):
    begun()
    while True:
        ctypes.PyDLL(None).sleep(3600)


def spin(begun):
    begun()
    while True:
        pass


@pytest.mark.parametrize("work", [sleep_in_c, sleep_with_the_lock, spin])
def test_stack_is_read_in_c_code_under_the_interpreter_lock_and_in_a_loop(place, work):
    place.start(work)
    place.stack()
    answer, error = place.wait()
    # the process has not returned to its sleep yet
    while error is None and work is not spin and answer["tasks"][0]["state"] == "runs":
        place.stack()
        answer, error = place.wait(len(place.answers) + 1)
    assert error is None
    [main] = [thread_of(thread) for thread in answer["threads"] if thread["current"]]
    assert main.name == MAIN
    assert work.__name__ in [frame.function for frame in main.frames]
    assert (answer["job"], answer["token"], answer["host"], answer["worker"], answer["pid"]) == (
        42,
        8,
        "web1",
        0,
        place.pid,
    )
    assert answer["tasks"][0]["tid"] == place.pid
    assert answer["tasks"][0]["state"] == ("runs" if work is spin else "waits")
    assert place.sampler.wake_at(0.0) == sampler.NEVER, "no request is left"


def test_stack_shows_all_threads_and_a_second_answer_replaces_the_first(place):
    def several(begun):
        threading.Thread(target=sleep_in_c, args=(lambda: None,), daemon=True).start()
        deep(50, begun)

    place.start(several)
    for number in (1, 2):
        place.stack()
        answer, _ = place.wait(number)
        assert [thread["name"] for thread in answer["threads"]][0] == MAIN
        assert len(answer["threads"]) == 2
        assert sum(frame[0] == "deep" for frame in answer["threads"][0]["frames"]) == 51
        assert len(answer["tasks"]) == 2


def deep(more, begun):
    if more:
        deep(more - 1, begun)
    else:
        sleep_in_c(begun)


def test_process_that_does_not_answer_is_reported_with_the_reason(place, monkeypatch):
    monkeypatch.setattr(sampler, "PATIENCE", 0.1)

    def blocks(begun):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        sleep_in_c(begun)

    place.start(blocks)
    place.until(lambda: describe_threads(place.pid)[0]["state"] == "waits")
    place.stack()
    answer, error = place.wait()
    assert error is None
    assert (answer["threads"], answer["tasks"][0]["state"]) == ([], "waits")
    assert answer["silent"] == f"process {place.pid} does not report its stack: it has blocked SIGUSR1, and waits"
    os.kill(place.pid, signal.SIGSTOP)
    os.waitpid(place.pid, os.WUNTRACED)
    place.profile(seconds=0.1)
    assert place.wait(2) == (
        None,
        f"process {place.pid} does not report its stack: it has blocked SIGUSR1, and is stopped",
    )


def test_process_without_the_sigusr1_handler_is_not_signaled_because_that_would_kill_it(place, monkeypatch):
    monkeypatch.setattr(sampler, "PATIENCE", 0.1)

    def deaf(begun):
        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        sleep_in_c(begun)

    place.start(deaf)
    place.stack()
    answer, _ = place.wait()
    assert "has replaced the handler of SIGUSR1" in answer["silent"]
    assert os.waitpid(place.pid, os.WNOHANG) == (0, 0), "the process must be alive"


def test_stack_of_a_job_that_does_not_run_is_rejected_with_the_job_that_does(place):
    place.start(spin)
    place.board.tally.declare([Policy()])
    place.stack(43)
    assert place.wait()[1] == "no worker on web1 runs job 43: it has just ended"
    place.stack(43, child=5)
    assert (
        place.wait(2)[1]
        == "job 43 has not started, or has just ended: worker 0 on web1 holds it, and runs (other) #42 now"
    )
    for wrong in ({"seconds": 0}, {"seconds": 1e9}, {"rate": 1000}, {"rate": "x"}, {"seconds": None}):
        place.profile(**wrong)
        assert "a profile takes up to 300 seconds" in place.wait(len(place.answers))[1]
    place.stack("42; DROP")
    assert "not a job id" in place.answers[-1][1]


def test_stack_of_the_next_job_is_not_returned_for_an_ended_one(place):
    def moves_on(begun):
        faulthandler.unregister(signal.SIGUSR1)
        # The process gets the request and starts another job before it answers.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        faulthandler.register(signal.SIGUSR1, file=place.board.fd, all_threads=True)
        begun()
        signal.sigwait({signal.SIGUSR1})
        os.kill(os.getpid(), signal.SIGUSR1)  # pending again
        place.board.say(JOB._replace(job=43))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.pause()

    place.start(moves_on)
    place.stack()
    answer, error = place.wait()
    assert answer is None
    assert error == "job 42 ended, and worker 0 runs (other) #43 now: there is no stack of it any more"


def test_profile_counts_samples_by_function(place):
    turn, on = os.pipe()

    def two_places(begun):
        begun()
        long_part(turn)
        short_part(turn)
        place.board.say(CurrentWork(Phase.IDLE, child=5))
        signal.pause()

    place.start(two_places)
    place.profile(seconds=300, rate=100)
    place.profile(seconds=1.0)
    assert place.answers.pop() == (None, "worker 0 is being profiled already: wait until the profile has ended")
    place.stack()
    answer, _ = place.wait()
    assert answer["threads"], "a stack can be read during a profile"
    for part, least in (("long_part", 30), ("short_part", 10)):
        place.until(lambda: seen_in(place.sampler._requests[0].counts, part) >= least)  # noqa: B023
        os.write(on, b".")
    profile, error = place.wait(2)
    assert error is None
    counts = flamegraph.counts_of(profile)
    assert seen_in(counts, "long_part") >= 30
    assert seen_in(counts, "short_part") >= 10
    assert profile["samples"] == sum(counts.values())
    assert profile["samples"] + profile["missed"] >= 40
    assert (profile["ended"], profile["rate"]) == ("job 42 ended, and worker 0 is idle now", 100)
    os.close(turn)
    os.close(on)


def seen_in(counts, name):
    return sum(n for (_, frames), n in counts.items() if any(frame.function == name for frame in frames))


def long_part(turn):
    while not select.select([turn], [], [], 0)[0]:
        pass
    os.read(turn, 1)


def short_part(turn):
    os.read(turn, 1)


def test_profile_ends_after_its_duration(place):
    place.start(spin)
    found = None
    while found is None:  # if the machine does not let the process run for that long, there is no sample
        place.profile(seconds=0.5, rate=100)
        found, _ = place.wait(len(place.answers) + 1)
    assert found["samples"] + found["missed"] == 50
    assert found["ended"] == ""
    assert found["processor"] >= 0


def test_profile_ends_with_its_job_and_keeps_its_samples(place):
    gone, go = os.pipe()

    def ends(begun):
        begun()
        os.read(gone, 1)
        place.board.say(CurrentWork(Phase.IDLE, child=5))
        signal.pause()

    place.start(ends)
    place.profile(seconds=60)
    place.until(lambda: place.sampler._requests[0].samples)
    os.write(go, b".")
    profile, _ = place.wait()
    assert profile["ended"] == "job 42 ended, and worker 0 is idle now"
    assert 0 < profile["seconds"] < 60
    assert profile["samples"] >= 1
    place.board.say(JOB)
    place.profile(seconds=60)
    place.sampler.step(time.monotonic())
    os.kill(place.pid, signal.SIGKILL)
    os.waitpid(place.pid, 0)
    place.pid = 0
    work = place.slot.seen.work
    death = death_of(
        place.slot_table, place.slot, Exit(None, 9), work=work, now=time.monotonic(), started=0, jitter=0.0
    )
    place.slot_table.on_exit(place.slot, death)
    assert place.wait(2)[1] == "the process of job 42 ended: there is no stack of it any more"
