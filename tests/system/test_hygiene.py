"""Resources of child processes: files, process groups, random numbers, titles.

Many dead child processes leave nothing behind.
"""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

from tests.support.processes import children_of

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33.

No program can handle or ignore them, but the program that started the tests may have left them ignored.
"""


def files(pid: int) -> dict[int, str]:
    """Return the open files of a process."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
    return found


def held(pid: int) -> int:
    """Return the number of open files at rest: the least of 50 counts, since a process opens some only briefly."""
    return min(len(files(pid)) for _ in range(50))


def title(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().rstrip(b"\0").decode()


def test_worker_has_no_open_files_of_its_supervisor_or_of_other_workers(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=3, environment={"NOTIFY_SOCKET": "@nobody-listens-here"})
    for number in range(3):
        stage.enqueue("t:gate", f'{{"label": "{number}"}}')
    arrivals = [gate.wait_arrival() for _ in range(3)]
    parents = files(fleet.pid)
    owned: dict[str, set[int]] = {}
    for arrival in arrivals:
        held = files(arrival.pid)
        assert held.pop(0) == "/dev/null"
        output = held.pop(1)
        assert output == held.pop(2) != parents[1], "the worker captures what its jobs print"
        assert list(held.values()).count(parents[1]) == 1, "its own output goes where the supervisor's does"
        kinds: dict[str, set[str]] = {}
        for target in held.values():
            kind = "notice" if "jobherd-notice" in target else re.split(r"[:\[]", target.removeprefix("/"))[0]
            kinds.setdefault(kind, set()).add(target)
        assert len(kinds.pop("notice")) == 1
        (board,) = kinds.pop("memfd")
        assert re.match(r"/memfd:jobherd-\d+ ", board), "only its own status board"
        pipes, sockets = kinds.pop("pipe"), kinds.pop("socket")
        pipes.remove(parents[1])
        assert output in pipes, "the worker reads what its jobs print"
        assert len(pipes) == 4, f"pipes to be woken, to report, to read output, and to wake itself: {held}"
        assert len(sockets) == 2, f"only its database and the gate: {held}"
        assert not sockets & set(parents.values()), "no socket of the supervisor"
        assert "anon_inode" not in kinds, f"no selector of the supervisor: {held}"
        assert set().union(*kinds.values()) == {str(stage.folder)}, f"otherwise only its working directory: {kinds}"
        for target in (board, *pipes):
            owned.setdefault(target, set()).add(arrival.pid)
    assert {target: pids for target, pids in owned.items() if len(pids) > 1} == {}, "open in several workers"
    for arrival in arrivals:
        arrival.open()
    assert fleet.stop() == 0


def test_thirty_dead_workers_leave_no_file_no_zombie_and_no_row(stage: Stage):
    fleet = stage.run_fleet(workers=2, respawn_initial="0.01s", respawn_max="0.1s")
    before = held(fleet.pid)
    for number in range(30):
        # No worker runs a job, so that the backoff of both slots grows: `respawn_max` limits it.
        victims = fleet.workers()
        os.kill(victims[number % 2], signal.SIGKILL)
        fleet.wait_ready(3 + number)
    stage.wait(lambda: len(files(fleet.pid)) == before, lambda: f"{before} files; it has {files(fleet.pid)}")
    fleet.signal(signal.SIGUSR1)
    fleet.wait_log("serving, supervisor 1")
    with open(f"/proc/{fleet.pid}/task/{fleet.pid}/children", encoding="ascii") as file:
        assert len(file.read().split()) == 3, "two workers, the maintenance process, and no zombie"
    assert len(os.listdir(f"/proc/{fleet.pid}/task")) == 1, "the supervisor has one thread"
    stage.wait(lambda: stage.count("children") == 3, "the rows of the last dead processes to be deleted")
    assert fleet.stop() == 0


def test_child_processes_have_their_own_random_numbers_groups_titles_and_signals(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=3)
    jobs = [stage.enqueue("t:who", f'{{"label": "{number}"}}') for number in range(3)]
    arrivals = [gate.wait_arrival() for _ in range(3)]
    slots = {pid: slot for slot, pid in fleet.workers().items()}
    for arrival in arrivals:
        assert title(arrival.pid) == f"jobherd: worker {slots[arrival.pid]} t:who #{jobs[int(arrival.label)]}"
        assert os.getpgid(arrival.pid) == arrival.pid
        assert os.getsid(arrival.pid) == fleet.pid, "in the session of its supervisor"
    assert title(fleet.maintenance()) == "jobherd: maintenance runs"
    assert title(fleet.pid).startswith("jobherd: supervisor [")
    for arrival in arrivals:
        arrival.open()
    results = [stage.wait_state(job, "completed")["result"] for job in jobs]
    assert len({result["random"] for result in results}) == 3
    assert len({result["uuid"] for result in results}) == 3
    for pid in children_of(fleet.pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            status = dict(line.split(":\t") for line in file.read().splitlines() if ":\t" in line)
        assert int(status["SigBlk"], 16) == 0, "no signal is blocked"
        assert int(status["SigIgn"], 16) & ~OF_THE_C_LIBRARY == 0, (
            "no signal is ignored: programs that a handler starts would inherit that"
        )
    assert fleet.stop() == 0
