"""SIGTTIN, SIGTTOU, SIGUSR1, and signals at any moment and in any number."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import wait_for_exit

if TYPE_CHECKING:
    from tests.support.fleet import Fleet, Stage
    from tests.support.gate import Gate


def test_ttin_adds_a_worker_ttou_drains_one_and_usr1_logs_the_status(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1)
    fleet.signal(signal.SIGTTIN)
    fleet.wait_log("workers wanted: 2")
    fleet.wait_ready(2)
    jobs = [stage.enqueue("t:gate", f'{{"label": "{label}"}}') for label in "ab"]
    arrivals = {arrival.pid: arrival for arrival in (gate.wait_arrival(), gate.wait_arrival())}
    fleet.signal(signal.SIGUSR1)
    told = fleet.wait_log(
        lambda event: (
            re.match(r"worker 1: pid \d+, ready for .+, t:gate #\d+ for .+$", event.get("message", "")) is not None
        )
    )
    assert f"pid {fleet.workers()[1]}" in told["message"]
    assert fleet.said("serving, supervisor 1, 2 workers wanted, the database is there")
    fleet.wait_log(lambda event: re.match(r"maintenance: pid \d+, ready for ", event.get("message", "")) is not None)
    surplus = fleet.workers()[1]
    fleet.signal(signal.SIGTTOU)
    fleet.wait_log("workers wanted: 1")
    arrivals[surplus].open()
    wait_for_exit(surplus)
    for pid in arrivals.keys() - {surplus}:
        arrivals[pid].open()
    stage.wait_all(jobs, "completed")
    assert [stage.job(job)["attempts"] for job in jobs] == [1, 1]
    assert len(fleet.workers()) == 1
    for _ in range(3):
        fleet.signal(signal.SIGTTOU)
    fleet.wait_log("workers wanted: 0")
    stage.wait(lambda: not fleet.workers(), "no workers")
    assert fleet.stop() == 0


def test_thousands_of_signals_disturb_neither_supervisor_nor_running_job(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1)
    job = stage.enqueue("t:gate", '{"label": "calm"}')
    arrival = gate.wait_arrival("calm")
    for _ in range(2000):
        os.kill(fleet.pid, signal.SIGCHLD)
        os.kill(arrival.pid, signal.SIGUSR2)
        os.kill(arrival.pid, signal.SIGHUP)
        os.kill(arrival.pid, signal.SIGPIPE)
    os.kill(fleet.pid, signal.SIGUSR1)
    fleet.wait_log("serving, supervisor 1")
    arrival.open("calm")
    row = stage.wait_state(job, "completed")
    assert (row["result"], row["attempts"]) == ("calm", 1)
    following = stage.enqueue("t:noop")
    stage.wait_state(following, "completed")
    assert fleet.stop() == 0
    assert not fleet.said(lambda event: event.get("level") in {"error", "critical"} or "raw" in event)


def answers(pid: int, signum: signal.Signals) -> bool:
    """Return whether a process blocks or handles a signal, so that the signal does not end it."""
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return bool((int(status["SigBlk"], 16) | int(status["SigCgt"], 16)) >> (signum - 1) & 1)


def wait_answers(fleet: Fleet) -> None:
    """Wait until the interpreter runs Jobherd's first line; before that, Jobherd cannot handle a signal."""
    until = time.monotonic() + 60
    while not answers(fleet.pid, signal.SIGTERM):
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.parametrize("after", [0.0, 0.1, 0.3, 0.6])
def test_sigterm_at_any_moment_of_the_start_stops_the_supervisor_cleanly(stage: Stage, after: float):
    fleet = stage.start(workers=1)
    wait_answers(fleet)
    time.sleep(after)  # reaches another step of the start
    fleet.signal(signal.SIGTERM)
    assert fleet.wait_exit(60) == 0, fleet.text()
    fleet.wait_gone(60)
    assert stage.call("SELECT count(*) FROM jobherd.supervisors") == 0
    assert not fleet.said(lambda event: event.get("level") in {"error", "critical"} or "raw" in event)


def test_signals_sent_before_the_main_loop_starts_are_handled_by_it(stage: Stage):
    """By default, SIGHUP ends a process, and SIGTTIN stops it indefinitely."""
    fleet = stage.start(workers=1)
    wait_answers(fleet)
    for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN):
        fleet.signal(signum)
    fleet.wait_log("workers wanted: 2", limit=60)
    fleet.wait_ready(2, limit=60)
    assert fleet.stop() == 0


def test_signals_during_exit_do_not_change_the_exit_code(stage: Stage):
    """The interpreter removes signal handlers well before the process ends: a later signal must not end it."""
    for _ in range(3):
        fleet = stage.run_fleet(workers=1)
        fleet.signal(signal.SIGTERM)
        fleet.wait_log("supervisor exits", limit=60)
        with suppress(ProcessLookupError):
            while not fleet.note_exit():
                for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTTIN, signal.SIGQUIT):
                    fleet.signal(signum)
        assert fleet.wait_exit(60) == 0, fleet.text()
