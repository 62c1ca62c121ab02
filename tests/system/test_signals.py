"""TTIN, TTOU, USR1, and signals in any number."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

from tests.support.processes import wait_for_exit

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


def test_ttin_adds_a_child_ttou_takes_one_that_finishes_what_it_runs_and_usr1_tells(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1)
    fleet.signal(signal.SIGTTIN)
    fleet.wait_log("2 workers wanted")
    fleet.wait_ready(2)
    jobs = [stage.enqueue("t:gate", f'{{"label": "{label}"}}') for label in "ab"]
    arrivals = {arrival.pid: arrival for arrival in (gate.wait_arrival(), gate.wait_arrival())}
    fleet.signal(signal.SIGUSR1)
    told = fleet.wait_log(
        lambda event: re.match(r"worker 1: pid \d+, ready for .* s, t:gate #\d+ for [\d.]+ s$", event.get("message", "")) is not None
    )
    assert f"pid {fleet.workers()[1]}" in told["message"]
    assert fleet.said("serving, supervisor 1, 2 workers wanted, the database is there")
    fleet.wait_log(lambda event: re.match(r"keeper: pid \d+, ready for ", event.get("message", "")) is not None)
    surplus = fleet.workers()[1]
    fleet.signal(signal.SIGTTOU)
    fleet.wait_log("1 workers wanted")
    arrivals[surplus].open()
    wait_for_exit(surplus)
    for pid in arrivals.keys() - {surplus}:
        arrivals[pid].open()
    stage.wait_all(jobs, "completed")
    assert [stage.job(job)["attempts"] for job in jobs] == [1, 1]
    assert len(fleet.workers()) == 1
    for _ in range(3):
        fleet.signal(signal.SIGTTOU)
    fleet.wait_log("0 workers wanted")
    stage.wait(lambda: not fleet.workers(), "no workers")
    assert fleet.stop() == 0


def test_a_storm_of_signals_hurts_nobody(stage: Stage, gate: Gate):
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
