"""Hooks that end their process or fail at the start, under a real supervisor.

No job is lost, and the log gives the cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workers.run.test_hooks import HOOKED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Stage


@pytest.mark.promise("B8")
def test_hook_that_exits_counts_as_a_crash_of_its_job_and_a_failed_start_hook_is_retried(
    stage: Stage, monkeypatch, tmp_path
):
    (tmp_path / "said").touch()
    monkeypatch.setenv("HOOKED", str(tmp_path / "said"))
    monkeypatch.setenv("HOOKED_FAILS_ONCE", str(tmp_path / "failed"))
    fleet = stage.run_fleet("--hooks", HOOKED, "--handlers", HOOKED, workers=1, poll="300s")
    fleet.wait_log(lambda event: "the model is away" in event.get("message", ""))
    row = stage.wait_state(stage.enqueue("hook:exits"), "completed")
    assert (row["result"], row["attempts"], row["crashes"]) == (2, 2, 1)
    assert row["history"][0]["error_code"] == "WORKER_CRASHED"


STUBBORN = """
import ctypes
import os
import signal
import jobherd.workers.run.hooks
from jobherd import Child, before_claim, handler, on_child_exit
from tests.support.gate import at_gate

jobherd.workers.run.hooks.LIMIT = 0.5  # a tenth of the default, so that the test waits less

def sit() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(3600)  # no Python code runs meanwhile, not even a signal handler's

def first(name: str) -> bool:
    place = os.path.join(os.environ["STUBBORN"], name)
    with open(f"{place}.{os.getpid()}", "w") as mine:
        mine.write(str(os.getpid()))
    try:
        os.link(mine.name, place)
    except FileExistsError:
        return False
    return True

@before_claim
def ask(child: Child) -> None:
    if child.slot == 0 and first("claim"):
        sit()

@on_child_exit
def leave(child: Child) -> None:
    if child.slot == 1 and first("exit"):
        sit()

@handler("stubborn:wears")
def wears() -> int:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the process is not used for another job
    return os.getpid()
"""


def test_hook_that_cannot_be_interrupted_is_killed_with_its_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Between jobs, no job's deadline ends the hook.

    Without a separate limit, its slot would have no worker indefinitely, and nothing would report it.
    """
    monkeypatch.setenv("STUBBORN", str(tmp_path))
    work = stage.write("work.py", STUBBORN)
    fleet = stage.run_fleet("--hooks", work, handlers=work, workers=2, grace="1s")
    # The first worker of slot 0 may have been killed and replaced by now, so each hook writes its pid.
    while not (tmp_path / "exit").exists():
        stage.wait_state(stage.enqueue("stubborn:wears"), "completed")
    sat = {int((tmp_path / name).read_text()) for name in ("claim", "exit")}
    assert len(sat) == 2
    for pid in sat:
        end = fleet.wait_log(lambda event, pid=pid: event.get("pid") == pid and "cause" in event)
        assert end["cause"] == "hook"
    rows = [stage.wait_state(stage.enqueue("stubborn:wears"), "completed") for _ in range(2)]
    assert {row["result"] for row in rows}.isdisjoint(sat)
    assert fleet.stop() == 0
