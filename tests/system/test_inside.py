"""Look inside running jobs from the command line.

The commands reach one supervisor through the database, as from any host.
"""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from tests.cli.shell import jobherd
from tests.support.processes import is_running

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

JOBS = """
import ctypes, time
from jobherd import handler
from tests.support.gate import at_gate

@handler("i:in-c", timeout="5m")
def in_c():
    at_gate("in c")
    while True:
        ctypes.PyDLL(None).sleep(3600)      # holds the interpreter's lock

@handler("i:busy", timeout="5m")
def busy():
    at_gate("busy")
    until = time.monotonic() + 3600
    while time.monotonic() < until:
        inner()

def inner():
    sum(range(20_000))
"""


def test_stack_and_profile_show_where_a_running_job_spends_its_time(stage: Stage, gate: Gate, tmp_path):
    place = stage.write("inside.py", JOBS)
    stage.run_fleet(workers=2, handlers=place, claim_size=1)
    stuck, busy = stage.enqueue("i:in-c"), stage.enqueue("i:busy")
    pids = {}
    for label in ("in c", "busy"):
        arrival = gate.wait_arrival(label)
        pids[label] = arrival.pid
        arrival.open()
        arrival.wait_gone()
    waiting = stage.enqueue("i:busy")

    answer = jobherd("stack", stuck, "--json", dsn=stage.dsn)
    assert answer.code == 0, answer
    told = json.loads(answer.out)
    [frame] = told["threads"][0]["frames"]
    assert (frame[0], frame[1]) == ("in_c", f"{place}/inside.py")
    assert (told["job"], told["kind"], told["pid"]) == (stuck, "i:in-c", pids["in c"])

    shown = jobherd("stack", stuck, dsn=stage.dsn).out
    assert shown.startswith(f"job {stuck}  i:in-c  on ")
    assert f'  File "{place}/inside.py", line {frame[2]}, in in_c' in shown
    assert re.search(r"^THREAD +NAME +CPU TIME +STATE$", shown, re.MULTILINE)

    done = jobherd("profile", busy, "--for", "1s", dsn=stage.dsn, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "a flame graph, for a browser" in done.out
    folded = (tmp_path / f"profile-{busy}.folded").read_text()
    assert f"main thread;busy ({place}/inside.py:" in folded
    assert ";inner (" in folded
    assert sum(int(line.rpartition(" ")[2]) for line in folded.splitlines()) >= 2
    ET.parse(tmp_path / f"profile-{busy}.svg")

    late = jobherd("stack", waiting, dsn=stage.dsn)
    assert (late.code, f"job {waiting} is not running: it is ready" in late.err) == (1, True)
    assert "job 99999 not found" in jobherd("stack", 99999, dsn=stage.dsn).err
    assert jobherd("profile", busy, "--for", "1h", dsn=stage.dsn).code == 2
    assert stage.run(
        "SELECT action, target ->> 'job' FROM jobherd.audit WHERE action IN ('stack', 'profile') ORDER BY id"
    ) == [
        ("stack", str(stuck)),
        ("stack", str(stuck)),
        ("profile", str(busy)),
    ]
    assert all(is_running(pid) for pid in pids.values()), "no worker was harmed"
    for pid in pids.values():
        os.kill(pid, 9)


def test_client_encoding_from_the_environment_changes_nothing(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=1, environment={"PGCLIENTENCODING": "LATIN1"})
    job = stage.enqueue("t:gate", '{"label": "a \N{GRINNING FACE}"}')
    gate.wait_arrival("a \N{GRINNING FACE}").open("b \N{GRINNING FACE}")
    assert stage.wait_state(job, "completed")["result"] == "b \N{GRINNING FACE}"
    assert fleet.stop() == 0
