"""Starting: handlers that do not load, children that do not come up, several supervisors at once."""

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


def test_handlers_that_do_not_load_stop_the_start_with_file_and_line(stage: Stage):
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


def test_no_handlers_at_all_is_said(stage: Stage):
    (stage.folder / "empty").mkdir()
    fleet = stage.start(handlers=stage.folder / "empty")
    assert fleet.wait_exit() == 78
    assert fleet.said("no handler was found")


def test_the_same_breakage_later_does_not_stop_a_running_fleet(stage: Stage):
    folder = stage.write("versions.py", VERSION.format(version="good"))
    fleet = stage.run_fleet(workers=2, handlers=folder, respawn_initial="0.02s")
    stage.write("versions.py", "import nothing_of_this_name\n")
    victim = fleet.workers()[0]
    os.kill(victim, signal.SIGKILL)
    fleet.wait_log("the handlers do not load any more", count=3)
    assert fleet.said("versions.py:1")
    assert versions(stage, 3) == {"good"}, "the others go on"
    stage.write("versions.py", VERSION.format(version="mended"))
    fleet.wait_ready(3)
    assert len(fleet.workers()) == 2
    assert fleet.stop() == 0


def test_a_child_that_hangs_at_import_is_killed_and_tried_again_with_growing_rests(stage: Stage, gate: Gate):
    folder = stage.write("hangs.py", HANGS)
    settings = stage.folder / "jobherd.toml"
    settings.write_text("spawn_timeout = '3s'\n")
    fleet = stage.start(handlers=folder, workers=1, spawn_timeout="", respawn_initial="0.02s")
    for _ in range(3):
        arrival = gate.wait_arrival("import")
        arrival.wait_gone()
    fleet.wait_log("was not ready in time and was killed", count=3)
    stage.write("hangs.py", VERSION.format(version="loaded"))
    # one that was forked just before, and hangs all the same, must not outlast the end
    settings.write_text("spawn_timeout = '20s'\n")
    fleet.signal(signal.SIGHUP)
    fleet.wait_ready(1)
    assert versions(stage, 2) == {"loaded"}
    assert fleet.stop() == 0


def test_a_slow_import_does_not_hold_up_the_others(stage: Stage, gate: Gate):
    fleet = stage.start(handlers=stage.write("hangs.py", HANGS), workers=2)
    first, second = gate.wait_arrival("import"), gate.wait_arrival("import")
    first.open()
    fleet.wait_ready(1)
    assert versions(stage, 2) == {"loaded"}
    fleet.signal(signal.SIGTERM)
    second.open()
    assert fleet.wait_exit() == 0


def test_term_in_the_middle_of_the_start_leaves_with_0(stage: Stage, gate: Gate):
    fleet = stage.start(handlers=stage.write("hangs.py", HANGS), workers=2, spawn_timeout="5s")
    gate.wait_arrival("import")
    gate.wait_arrival("import")
    fleet.signal(signal.SIGTERM)
    assert fleet.wait_exit() == 0
    fleet.wait_gone()


def test_a_crash_loop_at_start_rests_longer_and_longer(stage: Stage):
    folder = stage.write("dies.py", DIES)
    fleet = stage.start(handlers=folder, workers=1, respawn_initial="0.02s", respawn_max="60s")
    fleet.wait_log("died of SIGKILL (not sent by the supervisor)", count=6)
    times = [event["at"] for event in fleet.said("died of SIGKILL (not sent by the supervisor)")]
    seconds = [datetime.fromisoformat(at).timestamp() for at in times]
    rests = [later - earlier for earlier, later in zip(seconds, seconds[1:], strict=False)]
    # A busy machine makes any of them longer, and nothing makes one shorter.
    assert [
        rest for rest, least in zip(rests, (0.02, 0.04, 0.08, 0.16, 0.32), strict=True) if rest < 0.8 * least
    ] == [], rests
    assert fleet.stop() == 0


DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
LEAST, JITTER = 0.1, 0.75


def test_a_crash_loop_at_start_costs_few_forks_which_the_metrics_count(stage: Stage):
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
    assert before - 2 <= respawns <= len(fleet.said(dead)), "each but the last of each place has a successor"
    begun, ended = (fleet.said(dead)[place]["at"] for place in (0, before - 1))
    took = (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()
    # Doubled each time, no more rests fit between the first death and the last; a busy machine
    # makes each longer, and nothing makes one shorter.
    assert before <= 2 * (1 + math.log2(1 + took / (JITTER * LEAST))), (before, took)
    with open(f"/proc/{fleet.pid}/stat", "rb") as file:
        ticks = sum(map(int, file.read().rpartition(b")")[2].split()[11:13]))
    print(
        f"{before} deaths in {took:.2f} s; the parent has used {ticks / os.sysconf('SC_CLK_TCK'):.2f} s of a processor"
    )
    assert fleet.stop() == 0


def test_five_supervisors_started_at_the_same_moment_on_an_empty_database_all_come_up(
    empty_database: str, tmp_path: Path, gate: Gate
):
    with Stage(empty_database, tmp_path, audit=False) as stage:
        fleets = [stage.start(workers=1) for _ in range(5)]
        for fleet in fleets:
            fleet.wait_ready(1)
        assert sum(len(fleet.said("applied")) for fleet in fleets) == 1, "one of them has made the schema"
        with psycopg.connect(empty_database) as connection:
            job = connection.execute("SELECT jobherd.enqueue('t:gate', '{\"label\": \"one\"}')").fetchone()[0]
        gate.wait_arrival("one").open()
        for fleet in fleets:
            fleet.signal(signal.SIGTERM)
        assert [fleet.wait_exit() for fleet in fleets] == [0] * 5
        assert stage.state(job) == "completed", (
            "the partitions that five maintenance processes want to make meanwhile do not change how it ended"
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


def test_signals_and_timer_that_a_module_takes_at_its_import_are_put_back_before_the_first_job(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=stage.write("changes.py", CHANGES))
    told = fleet.wait_log("a module of handlers or on_child_start has changed")["message"]
    assert "signal handlers, which signals are blocked, the interval timer" in told
    stage.wait_state(stage.enqueue("c:returns"), "completed")
    late = stage.enqueue("c:sleeps")
    stage.wait_state(late, "failed")
    assert stage.job(late)["error_code"] == "JOB_TIMEOUT"
    assert not fleet.said("gets SIGTERM"), "its own timer has ended it"
    assert len(fleet.said(is_ready)) <= 2, "nobody was replaced but for the job that was torn out"
    assert fleet.stop() == 0


FORKS = """
import os
from jobherd import handler

os.fork()

@handler("f:pid")
def pid() -> int:
    return os.getpid()
"""


def test_a_copy_that_a_module_forks_at_its_import_does_not_work_at_its_parents_board(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=stage.write("forks.py", FORKS))
    jobs = [stage.enqueue("f:pid") for _ in range(30)]
    stage.wait_all(jobs, "completed")
    assert {stage.job(job)["result"] for job in jobs} == set(fleet.workers().values())
    assert not fleet.said("was lost")
    assert fleet.stop() == 0
