"""SIGHUP: new code and new settings, one worker after the other, while jobs run."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.shell import jobherd

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet, Stage
    from tests.support.gate import Gate

VERSION = """
from jobherd import handler
from tests.support.gate import at_gate

@handler("v:version", timeout="5m")
def version(label: str = "") -> str:
    if label:
        at_gate(label)
    return "{version}"
"""


def least_ready(fleet: Fleet, wanted: int) -> int:
    """Return the fewest workers ready at once, by the log, since the wanted number was first ready."""
    ready: set[int] = set()
    least, counting = wanted, False
    for event in fleet.log:
        message, pid = event.get("message", ""), event.get("pid")
        if not message.startswith(("worker", "Process")) or pid is None:
            continue
        if message.endswith("is ready"):
            ready.add(pid)
        elif pid in ready and ("exited" in message or message.startswith("Process")):
            ready.discard(pid)
        counting = counting or len(ready) >= wanted
        if counting:
            least = min(least, len(ready))
    return least


def versions(stage: Stage, count: int) -> set[Any]:
    """Return the results of this many new jobs."""
    jobs = [stage.enqueue("v:version") for _ in range(count)]
    stage.wait_all(jobs, "completed")
    return {stage.job(job)["result"] for job in jobs}


@pytest.mark.promise("A21")
def test_reload_starts_workers_with_new_code_and_a_running_job_finishes_on_the_old(stage: Stage, gate: Gate):
    folder = stage.write("versions.py", VERSION.format(version="old"))
    fleet = stage.run_fleet(workers=2, handlers=folder)
    assert versions(stage, 4) == {"old"}
    long = stage.enqueue("v:version", '{"label": "long"}')
    arrival = gate.wait_arrival("long")
    stage.write("versions.py", VERSION.format(version="new"))
    fleet.signal(signal.SIGHUP)
    fleet.wait_ready(4)
    assert versions(stage, 4) == {"new"}, "new workers run jobs while the old job runs"
    assert stage.state(long) == "running"
    arrival.open()
    assert stage.wait_state(long, "completed")["result"] == "old"
    fleet.wait_log("every worker runs the new code")
    fleet.wait_log(
        lambda event: event.get("message", "").startswith("worker") and event["message"].endswith(" exited"), count=2
    )
    assert least_ready(fleet, 2) == 2, "never fewer workers than wanted"
    assert fleet.stop() == 0


def test_reload_of_broken_code_keeps_the_old_workers_and_fixed_code_is_loaded(stage: Stage):
    folder = stage.write("versions.py", VERSION.format(version="old"))
    fleet = stage.run_fleet(workers=2, handlers=folder)
    before = fleet.workers()
    stage.write("versions.py", "this is no Python\n")
    fleet.signal(signal.SIGHUP)
    line = fleet.wait_log("versions.py:1")
    assert line["level"] in {"error", "warning"}
    fleet.wait_log("the old workers continue")
    assert versions(stage, 4) == {"old"}
    assert fleet.workers() == before
    stage.write("versions.py", VERSION.format(version="mended"))
    fleet.signal(signal.SIGHUP)
    fleet.wait_log("every worker runs the new code")
    assert versions(stage, 4) == {"mended"}
    assert least_ready(fleet, 2) == 2
    assert fleet.stop() == 0


def test_fleet_reload_command_reports_whether_code_and_settings_load(stage: Stage):
    folder = stage.write("versions.py", VERSION.format(version="old"))
    settings = stage.folder / "jobherd.toml"
    settings.write_text("claim_size = 1\n")
    fleet = stage.run_fleet(workers=1, handlers=folder, claim_size="")
    number = stage.call("SELECT id FROM jobherd.supervisors")
    stage.write("versions.py", "this is not Python\n")
    broken = jobherd("fleet", "reload", number, dsn=stage.dsn)
    assert broken.code == 1, broken
    assert f"supervisor {number}: the new code does not load, the old workers stay: " in broken.out
    assert "versions.py:1: " in broken.out
    stage.write("versions.py", VERSION.format(version="new"))
    mended = jobherd("fleet", "reload", number, dsn=stage.dsn)
    assert (mended.code, mended.out) == (
        0,
        f"supervisor {number}: the new code loads; its workers are replaced one by one\n",
    )
    assert versions(stage, 1) == {"new"}
    settings.write_text("claim_size = 'many'\n")
    refused = jobherd("fleet", "reload", number, dsn=stage.dsn)
    assert refused.code == 1, refused
    assert "reload failed; keeping the current settings" in refused.out
    assert fleet.stop() == 0


def test_reload_applies_new_settings_and_rejects_invalid_ones(stage: Stage, gate: Gate):
    settings = stage.folder / "jobherd.toml"
    settings.write_text("workers = 1\nclaim_size = 1\n")
    fleet = stage.start(workers="", claim_size="")
    fleet.wait_ready(1)
    settings.write_text("workers = 3\nclaim_size = 7\nclaim_window = 0\n")
    fleet.signal(signal.SIGHUP)
    fleet.wait_ready(4)
    fleet.wait_log("every worker runs the new code")
    stage.wait(lambda: len(fleet.workers()) == 3, "three workers")
    stage.run("""SELECT jobherd.enqueue('t:gate', '{"label": "batch"}') FROM generate_series(1, 7)""")
    first = gate.wait_arrival("batch")
    assert stage.call("SELECT max(cardinality(jobs)) FROM jobherd.running") == 7, (
        "settings of workers are read again too"
    )
    first.open()
    for _ in range(6):
        gate.wait_arrival("batch").open()
    settings.write_text("workers = 'many'\n")
    fleet.signal(signal.SIGHUP)
    assert "workers" in fleet.wait_log("reload failed; keeping the current settings")["message"]
    fleet.wait_log("every worker runs the new code", count=2)
    stage.wait(lambda: len(fleet.workers()) == 3, "three workers")
    assert fleet.stop() == 0


def test_reload_rejects_more_workers_than_max_workers_of_the_start_and_ends(stage: Stage):
    """With more workers wanted than slots, no old worker would ever be surplus, and the reload would never end."""
    settings = stage.folder / "jobherd.toml"
    settings.write_text("workers = 1\nmax_workers = 2\n")
    fleet = stage.start(workers="", claim_size="")
    fleet.wait_ready(1)
    settings.write_text("workers = 2\nmax_workers = 5\nschema = 'elsewhere'\n")
    fleet.signal(signal.SIGHUP)
    fleet.wait_log("every worker runs the new code")
    assert fleet.wait_log("max_workers was changed: restart the supervisor to apply it")["level"] == "warning"
    fleet.wait_log("schema was changed: restart the supervisor to apply it")
    settings.write_text("workers = 5\nmax_workers = 5\n")
    fleet.signal(signal.SIGHUP)
    told = fleet.wait_log("reload failed; keeping the current settings")["message"]
    assert "max_workers = 2 (from the start of this supervisor)" in told
    fleet.wait_log("every worker runs the new code", count=2)
    stage.wait(lambda: len(fleet.workers()) == 2, "two workers")
    stage.wait_state(stage.enqueue("t:noop"), "completed")
    assert fleet.stop() == 0


def test_burst_of_reloads_ends_with_the_wanted_number_of_workers(stage: Stage):
    folder = stage.write("versions.py", VERSION.format(version="old"))
    fleet = stage.run_fleet(workers=2, handlers=folder)
    stage.write("versions.py", VERSION.format(version="new"))
    for number in range(5):
        fleet.signal(signal.SIGHUP)
        fleet.wait_log("got SIGHUP", count=number + 1)
    fleet.wait_log("every worker runs the new code")
    assert versions(stage, 6) == {"new"}
    stage.wait(lambda: len(fleet.workers()) == 2, "two workers")
    assert least_ready(fleet, 2) == 2
    assert fleet.stop() == 0


def test_traceback_reports_that_a_handler_file_changed_after_it_was_loaded(stage: Stage):
    place = stage.write("mail.py", FAILING)
    stage.run_fleet(workers=1, handlers=place)
    row = stage.wait_state(stage.enqueue("m:send"), "failed")
    first = row["history"][-1]["traceback"]
    assert first.startswith(f'Traceback (most recent call last):\n  File "{place}/mail.py"'), (
        "the traceback begins with the handler"
    )
    assert "was changed" not in first
    (place / "mail.py").write_text(FAILING.replace("no such order", "mended"))
    row = stage.wait_state(stage.enqueue("m:send"), "failed")
    assert (
        f"({place}/mail.py was changed after this process had loaded it: reload the workers"
        in row["history"][-1]["traceback"]
    )


FAILING = """
from jobherd import handler

@handler("m:send", max_attempts=1)
def send():
    raise ValueError("no such order")
"""


def test_supervisor_whose_working_folder_was_removed_replaces_its_workers(stage: Stage, tmp_path: Path):
    """A deploy that deletes the old release does this."""
    release = tmp_path / "release-1"
    release.mkdir()
    fleet = stage.start(workers=1, cwd=release)
    fleet.wait_ready(1)
    release.rmdir()
    os.kill(fleet.workers()[0], signal.SIGKILL)
    fleet.wait_ready(2)
    stage.wait_state(stage.enqueue("t:noop"), "completed")
    fleet.signal(signal.SIGHUP)
    fleet.wait_log("every worker runs the new code")
    stage.wait_state(stage.enqueue("t:noop"), "completed")
    assert fleet.stop() == 0


def test_reload_option_loads_changed_files_and_keeps_the_old_workers_if_they_are_broken(stage: Stage):
    folder = stage.write("versions.py", VERSION.format(version="old"))
    fleet = stage.run_fleet("--reload", workers=1, handlers=folder)
    assert versions(stage, 1) == {"old"}
    stage.write("versions.py", "this is not Python\n")
    fleet.wait_log("reloading, since files changed: '")
    fleet.wait_log("the old workers continue")
    assert versions(stage, 1) == {"old"}
    stage.write("versions.py", VERSION.format(version="new"))
    fleet.wait_log("every worker runs the new code")
    assert versions(stage, 1) == {"new"}
    (watcher,) = [pid for pid, command in fleet.processes().items() if "watcher of files" in command]
    os.kill(watcher, signal.SIGKILL)
    fleet.wait_log("--reload no longer works")
    assert versions(stage, 1) == {"new"}
    assert fleet.stop() == 0
