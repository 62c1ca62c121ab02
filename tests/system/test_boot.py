"""The start: handlers that do not load, workers that do not become ready, several supervisors at once."""

from __future__ import annotations

import math
import os
import signal
from datetime import datetime
from typing import TYPE_CHECKING

import psycopg

from tests.support.fleet import Stage, is_ready
from tests.system.test_metrics import scrape
from tests.system.test_reload import VERSION, versions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gate import Gate

HANGS = """
import os, socket  # and not the gate's module, which takes longer to import than a busy machine has here
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gate:
    gate.connect(os.environ["JOBHERD_TEST_GATE"])
    gate.send(b"import\\n")
    gate.recv(100)
from jobherd import handler

@handler("v:version")
def version(label: str = "") -> str:
    return "loaded"
"""


def test_handlers_that_do_not_load_stop_the_start_and_the_log_names_file_and_line(stage: Stage):
    folder = stage.write("good.py", VERSION.format(version="good"))
    stage.write("broken.py", "import json\n\nraise RuntimeError('out of paper')\n")
    fleet = stage.start(handlers=folder)
    assert fleet.wait_exit() == 78
    fleet.wait_gone()
    line = fleet.said("broken.py:3")[0]
    assert "out of paper" in line["message"]
    assert fleet.said("stopping")
    assert stage.call("SELECT count(*) FROM jobherd.supervisors") == 0
    assert len(fleet.log) < 30, fleet.text()


def test_start_fails_when_no_handler_is_found(stage: Stage):
    (stage.folder / "empty").mkdir()
    fleet = stage.start(handlers=stage.folder / "empty")
    assert fleet.wait_exit() == 78
    assert fleet.said("no handler was found")


def test_handlers_that_break_later_do_not_stop_a_running_supervisor(stage: Stage):
    folder = stage.write("versions.py", VERSION.format(version="good"))
    fleet = stage.run_fleet(workers=2, handlers=folder, respawn_initial="0.02s")
    stage.write("versions.py", "import nothing_of_this_name\n")
    victim = fleet.workers()[0]
    os.kill(victim, signal.SIGKILL)
    fleet.wait_log("the handlers do not load any more", count=3)
    assert fleet.said("versions.py:1")
    assert versions(stage, 3) == {"good"}, "the other worker continues with the old handlers"
    stage.write("versions.py", VERSION.format(version="mended"))
    fleet.wait_ready(3)
    assert len(fleet.workers()) == 2
    assert fleet.stop() == 0


def test_worker_that_hangs_at_import_is_killed_and_restarted(stage: Stage, gate: Gate):
    folder = stage.write("hangs.py", HANGS)
    settings = stage.folder / "jobherd.toml"
    settings.write_text("spawn_timeout = '3s'\n")
    fleet = stage.start(handlers=folder, workers=1, spawn_timeout="", respawn_initial="0.02s")
    for _ in range(3):
        arrival = gate.wait_arrival("import")
        arrival.wait_gone()
    fleet.wait_log("was not ready in time and was killed", count=3)
    stage.write("hangs.py", VERSION.format(version="loaded"))
    # Not longer: a worker forked just before this change still hangs, and must be killed before the test ends.
    settings.write_text("spawn_timeout = '20s'\n")
    fleet.signal(signal.SIGHUP)
    fleet.wait_ready(1)
    assert versions(stage, 2) == {"loaded"}
    assert fleet.stop() == 0


def test_slow_import_in_one_worker_does_not_delay_the_others(stage: Stage, gate: Gate):
    fleet = stage.start(handlers=stage.write("hangs.py", HANGS), workers=2)
    first, second = gate.wait_arrival("import"), gate.wait_arrival("import")
    first.open()
    fleet.wait_ready(1)
    assert versions(stage, 2) == {"loaded"}
    fleet.signal(signal.SIGTERM)
    second.open()
    assert fleet.wait_exit() == 0


def test_sigterm_while_workers_import_handlers_exits_with_code_0(stage: Stage, gate: Gate):
    fleet = stage.start(handlers=stage.write("hangs.py", HANGS), workers=2, spawn_timeout="5s")
    gate.wait_arrival("import")
    gate.wait_arrival("import")
    fleet.signal(signal.SIGTERM)
    assert fleet.wait_exit() == 0
    fleet.wait_gone()


def test_crash_loop_at_start_backs_off_exponentially(stage: Stage):
    folder = stage.write("dies.py", DIES)
    fleet = stage.start(handlers=folder, workers=1, respawn_initial="0.02s", respawn_max="60s")
    fleet.wait_log("died of SIGKILL (not sent by the supervisor)", count=6)
    times = [event["at"] for event in fleet.said("died of SIGKILL (not sent by the supervisor)")]
    seconds = [datetime.fromisoformat(at).timestamp() for at in times]
    rests = [later - earlier for earlier, later in zip(seconds, seconds[1:], strict=False)]
    # A busy machine makes any pause longer, and nothing makes one shorter.
    assert [
        rest for rest, least in zip(rests, (0.02, 0.04, 0.08, 0.16, 0.32), strict=True) if rest < 0.8 * least
    ] == [], rests
    assert fleet.stop() == 0


DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
LEAST, JITTER = 0.1, 0.75


def test_crash_loop_at_start_forks_rarely_and_the_metrics_count_the_forks(stage: Stage):
    fleet = stage.start(
        handlers=stage.write("dies.py", DIES),
        workers=2,
        respawn_initial=f"{LEAST}s",
        respawn_max="60s",
        http="127.0.0.1:0",
    )
    address = fleet.wait_log("metrics and health on")["message"].split(" on ")[1]
    dead = "died of SIGKILL (not sent by the supervisor)"
    fleet.wait_log(dead, count=10)
    before = len(fleet.said(dead))
    respawns = scrape(address)["jobherd_child_respawns_total"][()]
    assert before - 2 <= respawns <= len(fleet.said(dead)), "each dead worker except the last of each slot was replaced"
    begun, ended = (fleet.said(dead)[place]["at"] for place in (0, before - 1))
    took = (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()
    # Each pause is twice the one before, so no more pauses fit between the first death and the last.
    # A busy machine makes each longer, and nothing makes one shorter.
    assert before <= 2 * (1 + math.log2(1 + took / (JITTER * LEAST))), (before, took)
    with open(f"/proc/{fleet.pid}/stat", "rb") as file:
        ticks = sum(map(int, file.read().rpartition(b")")[2].split()[11:13]))
    print(
        f"{before} deaths in {took:.2f} s; the parent has used {ticks / os.sysconf('SC_CLK_TCK'):.2f} s of a processor"
    )
    assert fleet.stop() == 0


def test_five_supervisors_started_at_once_on_an_empty_database_all_become_ready(
    empty_database: str, tmp_path: Path, gate: Gate
):
    with Stage(empty_database, tmp_path, audit=False) as stage:
        fleets = [stage.start(workers=1) for _ in range(5)]
        for fleet in fleets:
            fleet.wait_ready(1)
        assert sum(len(fleet.said("applied")) for fleet in fleets) == 1, "exactly one of them has created the schema"
        with psycopg.connect(empty_database) as connection:
            job = connection.execute("SELECT jobherd.enqueue('t:gate', '{\"label\": \"one\"}')").fetchone()[0]
        gate.wait_arrival("one").open()
        for fleet in fleets:
            fleet.signal(signal.SIGTERM)
        assert [fleet.wait_exit() for fleet in fleets] == [0] * 5
        assert stage.state(job) == "completed", (
            "five maintenance processes that create partitions meanwhile do not change its outcome"
        )
        assert all(len(fleet.said(is_ready)) == 1 for fleet in fleets)


CHANGES = """
import signal, time
from jobherd import handler

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGUSR2})
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 3600)

@handler("c:sleeps", timeout="0.3s", max_attempts=1)
def sleeps() -> None:
    time.sleep(600)

@handler("c:returns")
def returns() -> None: ...
"""


def test_signal_handlers_and_timer_changed_at_import_are_restored_before_the_first_job(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=stage.write("changes.py", CHANGES))
    told = fleet.wait_log("a module of handlers or on_child_start has changed")["message"]
    assert "signal handlers, which signals are blocked, the interval timer" in told
    stage.wait_state(stage.enqueue("c:returns"), "completed")
    late = stage.enqueue("c:sleeps")
    stage.wait_state(late, "failed")
    assert stage.job(late)["error_code"] == "JOB_TIMEOUT"
    assert not fleet.said("gets SIGTERM"), "the worker's own timer interrupted the job"
    assert len(fleet.said(is_ready)) <= 2, "only the worker whose job was interrupted was replaced"
    assert fleet.stop() == 0


FORKS = """
import os
from jobherd import handler

os.fork()

@handler("f:pid")
def pid() -> int:
    return os.getpid()
"""


def test_process_that_a_module_forks_at_import_runs_no_jobs(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=stage.write("forks.py", FORKS))
    jobs = [stage.enqueue("f:pid") for _ in range(30)]
    stage.wait_all(jobs, "completed")
    assert {stage.job(job)["result"] for job in jobs} == set(fleet.workers().values())
    assert not fleet.said("was lost")
    assert fleet.stop() == 0
