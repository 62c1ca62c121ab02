"""Post-mortems of real deaths.

Causes are the kernel's limits, a stack overflow, a job that does not stop, and memory.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cgroup import dissolve

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

DYING = """
import ctypes, os, re, resource, signal, sys, time
from jobherd import handler
from tests.support.gate import at_gate

COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
libc = ctypes.CDLL(None)

@handler("p:overflow", max_attempts=1)
def overflow():
    sys.setrecursionlimit(1_000_000)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    again()

def again(*_):
    libc.qsort((ctypes.c_int * 2)(2, 1), 2, 4, COMPARE(again))
    return 0

@handler("p:processor", max_attempts=1)
def processor():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1, resource.RLIM_INFINITY))
    while True:
        pass

@handler("p:address-space", max_attempts=1)
def address_space():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), before[1]))
    try:
        return len(bytearray(1 << 30))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

@handler("p:exit", max_attempts=1)
def leaves():
    print("nobody calls me twice")
    os._exit(3)

@handler("p:stubborn", timeout=0.2, max_attempts=1)
def stubborn():
    # Not by catching what is raised: two that come one behind the other get past that.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGUSR2, signal.SIGTERM})
    while True:
        libc.usleep(10_000_000)

@handler("p:eats", max_attempts=1)
def eats():
    at_gate("hungry")
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)))

@handler("p:eats-once")
def eats_once():
    word = at_gate("hungry")
    held = []
    while word == "eat":
        held.append(bytearray(os.urandom(1 << 20)))
    return word

@handler("p:holds")
def holds():
    return at_gate("holds")

@handler("p:grows", max_attempts=1)
def grows():
    held = grow_until_asked([int(fd) for fd in os.listdir("/proc/self/fd") if is_board(f"/proc/self/fd/{fd}")])
    os.kill(os.getpid(), 9)

def is_board(fd):
    return os.path.exists(fd) and re.search(r"memfd:jobherd-\\d", os.readlink(fd))

def where(boards):
    return [os.lseek(fd, 0, os.SEEK_CUR) for fd in boards]

def grow_until_asked(boards):
    before = where(boards)
    held = bytearray(os.urandom(96 << 20))  # it may be asked meanwhile already
    while where(boards) == before:
        time.sleep(0.01)
    return held
"""


def test_post_mortem_names_the_cause_of_death_and_the_line_that_was_executing(stage: Stage):
    place = stage.write("dying.py", DYING)
    stage.run_fleet(workers=2, handlers=place, grace="2s", code_version="v7", lease="90s")
    jobs = {name: stage.enqueue(f"p:{name}") for name in ("overflow", "processor", "address-space", "exit", "stubborn")}
    rows = {name: stage.wait_state(job, "failed") for name, job in jobs.items()}
    reports = {name: row["history"][-1].get("post_mortem") for name, row in rows.items()}

    report = reports["overflow"]
    assert report["signal"] == "SIGSEGV"
    assert "its stack overflowed, again called itself endlessly" in rows["overflow"]["error"]
    assert f"in again at {place}/dying.py:" in rows["overflow"]["error"]
    assert report["code_version"] == "v7"
    assert 0 <= report["lease_age"] < 90

    assert reports["processor"]["signal"] == "SIGXCPU"
    assert "RLIMIT_CPU) at" in rows["processor"]["error"]
    assert f"in processor at {place}/dying.py:" in rows["processor"]["error"], "faulthandler writes for this signal too"
    assert reports["processor"]["cpu_user"] + reports["processor"]["cpu_system"] > 0.5, (
        "of the 1 s that RLIMIT_CPU allows"
    )

    assert reports["address-space"] is None, "its process did not die"
    assert rows["address-space"]["crashes"] == 0
    assert "MemoryError" in f"{rows['address-space']['error_code']} {rows['address-space']['error']}"

    assert (reports["exit"]["exit_code"], reports["exit"]["cause"]) == (3, "exit")

    assert (rows["stubborn"]["error_code"], reports["stubborn"]["signal"]) == ("JOB_TIMEOUT", "SIGKILL")
    assert f"It was executing stubborn at {place}/dying.py:" in rows["stubborn"]["error"], (
        "the stack was requested before the kill"
    )
    assert "main thread (most recent call last):" in rows["stubborn"]["history"][-1]["traceback"]


def test_post_mortem_tells_an_out_of_memory_kill_from_a_kill_by_another_process(
    stage: Stage, gate: Gate, confined: int
):
    place = stage.write("dying.py", DYING)
    stage.run_fleet(workers=1, handlers=place)
    job = stage.enqueue("p:eats")
    gate.wait_arrival("hungry").open()
    row = stage.wait_state(job, "failed")
    report = row["history"][-1]["post_mortem"]
    assert (report["signal"], report["cause"], report["oom"]) == ("SIGKILL", "oom", True)
    assert (report["memory"]["limit"], report["memory"]["oom_kills"]) == (confined, 1)
    assert f"of {confined >> 20} MiB allowed by its control group, while it ran p:eats #{job}" in row["error"]

    held = stage.enqueue("p:holds")
    os.kill(gate.wait_arrival("holds").pid, signal.SIGKILL)
    gate.wait_arrival("holds").open("again")
    death = stage.wait_state(held, "completed")["history"][0]
    report = death["post_mortem"]
    assert (report["signal"], report["cause"], report["oom"]) == ("SIGKILL", "signal", False)
    assert report["memory"]["oom_kills"] == 1, "the only out-of-memory kill explains the death before this one"
    assert "died of SIGKILL (not sent by the supervisor)" in death["error"]


def test_out_of_memory_kill_of_one_worker_spares_the_others_and_its_job_runs_again(
    stage: Stage, gate: Gate, confined: int
):
    """The kernel kills only the largest process of the control group.

    The supervisor handles the rest.
    """
    place = stage.write("dying.py", DYING)
    fleet = stage.run_fleet(workers=2, handlers=place)
    others = stage.enqueue("p:holds")
    hungry = stage.enqueue("p:eats-once")
    holding, eating = gate.wait_arrival("holds"), gate.wait_arrival("hungry")
    eating.open("eat")
    again = gate.wait_arrival("hungry")
    assert again.pid != eating.pid
    again.open("enough")
    row = stage.wait_state(hungry, "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "enough")
    assert "scheduled" not in dict(stage.moves(hungry)), "no backoff follows the first crash"
    death = row["history"][0]
    assert (death["outcome"], death["error_code"], death["post_mortem"]["cause"]) == ("retry", "WORKER_CRASHED", "oom")
    assert death["post_mortem"]["memory"]["limit"] == confined
    assert death["post_mortem"]["memory"]["oom_kills"] == 1
    holding.open("undisturbed")
    row = stage.wait_state(others, "completed")
    assert (row["attempts"], row["result"]) == (1, "undisturbed")
    assert fleet.stop() == 0


LEAST = 320 << 20


@pytest.fixture
def confined():
    """A control group with little memory, in which this process and those it starts are until the test ends."""
    found = _make_group()
    if found is None:
        pytest.skip("no control group with a limit of memory can be made here")
    own, group = found
    try:
        yield LEAST
    finally:
        dissolve(group, own)


def _make_group() -> tuple[Path, Path] | None:
    """Return this process's former control group and a new one below it, in which the process now is."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        own = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup") / path.lstrip("/")
        group = own / f"jobherd-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if not (
            group / "cgroup.procs"
        ).exists():  # an ordinary folder, in which control groups of version 1 are mounted
            group.rmdir()
            continue
        try:
            (group / ("memory.limit_in_bytes" if controllers else "memory.max")).write_text(str(LEAST))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            group.rmdir()
        else:
            return own, group
    return None


def test_post_mortem_of_a_killed_process_shows_the_stack_from_when_its_memory_grew(stage: Stage):
    place = stage.write("dying.py", DYING)
    stage.run_fleet(workers=1, handlers=place)
    row = stage.wait_state(stage.enqueue("p:grows"), "failed")
    (attempt,) = row["history"]
    kept = attempt["post_mortem"]
    found = re.search(
        r"died of SIGKILL \(not sent by the supervisor\) at \d+ MiB while it ran p:grows #\d+\. ([\d.]+ \w+ before, at (\d+) MiB,) it was executing (.*)\.$",
        attempt["error"],
    )
    assert found is not None, attempt["error"]
    assert int(found[2]) >= 96
    assert "dying.py" in found[3]
    assert kept["sentence"] == attempt["error"]
    assert kept["stack"].startswith(f"{found[1]} it was executing:")
    assert "in grows" in kept["stack"]
    assert "in grow_until_asked" in kept["stack"]
