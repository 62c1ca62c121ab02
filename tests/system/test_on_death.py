"""`on_death` hooks, and events of an SDK that sends them from a thread, with a real supervisor."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Stage

MOURNING = """
import os
import time

from jobherd import Job, handler, on_death, on_child_start
from tests.support.gate import at_gate

MEANT = os.environ["MOURNING"]

def note(*words):
    with open(MEANT, "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

@handler("d:dies", max_attempts=2, max_crashes=5, backoff=(0.0, 0.0))
def dies(job: Job, how: str, label: str = "") -> None:
    if how == "exit":
        os._exit(3)
    if how == "abort":
        os.abort()
    at_gate(label)

@handler("d:other", max_attempts=1)
def other() -> None:
    os._exit(4)

@on_death
def all_of_them(job, post_mortem):
    note("death", job.id, job.kind, job.queue, job.attempt, job.crashes, job.payload, post_mortem["cause"], post_mortem["outcome"])

@on_death("d:other")
def raises(job):
    raise RuntimeError("no words")

@on_death("d:other")
def hangs(job):
    note("hangs", os.getpid(), os.getppid())
    import signal, ctypes
    ctypes.PyDLL(None).sleep(3600)

@on_death("d:other")
def never_called():
    note("after the one that hangs")
"""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    place = tmp_path / "said"
    place.touch()
    monkeypatch.setenv("MOURNING", str(place))
    return place


def lines(said: Path, start: str = "") -> list[str]:
    return [line for line in said.read_text().splitlines() if line.startswith(start)]


def test_on_death_hook_is_called_once_for_each_job_that_died_with_its_process(stage: Stage, gate, said: Path):
    fleet = stage.run_fleet(handlers=stage.write("work.py", MOURNING), workers=2, poll="300s")
    job = stage.enqueue("d:dies", '{"how": "exit"}', queue="media")
    stage.wait_state(job, "failed")
    stage.wait(lambda: len(lines(said)) == 2, "hooks for both deaths")
    payload = {"how": "exit"}
    assert lines(said) == [
        f"death {job} d:dies media 1 1 {payload} exit retry",
        f"death {job} d:dies media 2 2 {payload} exit failed",
    ]
    killed = stage.enqueue("d:dies", '{"how": "gate", "label": "x"}')
    os.kill(gate.wait_arrival("x").pid, signal.SIGKILL)
    gate.wait_arrival("x").open()
    stage.wait_state(killed, "completed")
    stage.wait(lambda: len(lines(said, f"death {killed} ")) == 1, "the hook for the death by SIGKILL")
    assert "signal retry" in lines(said)[-1]
    assert fleet.stop() == 0
    assert len(lines(said)) == 3, "the hook is called once for each death"


def test_on_death_hook_that_raises_or_hangs_is_logged_and_later_deaths_still_call_hooks(stage: Stage, said: Path):
    work = stage.write("work.py", MOURNING)
    fleet = stage.run_fleet(handlers=work, workers=1, poll="300s")
    maintenance = fleet.maintenance()
    bad = stage.enqueue("d:other")
    stage.wait_state(bad, "failed")
    fleet.wait_log(
        lambda event: "raised: RuntimeError: no words" in event.get("message", "") and event["process"] == "on_death"
    )
    end = fleet.wait_log(
        lambda event: "the process that calls on_death hooks was ended by SIGALRM" in event.get("message", "")
    )
    assert end["job"] == bad
    assert lines(said, "after") == []
    # The same maintenance process still calls the hooks for deaths that wait behind this one or come later.
    job = stage.enqueue("d:dies", '{"how": "abort"}')
    stage.wait_state(job, "failed")
    stage.wait(lambda: len(lines(said, f"death {job} ")) == 2, "hooks for the next deaths")
    assert fleet.maintenance() == maintenance
    [(pid, parent)] = [line.split()[1:] for line in lines(said, "hangs")]
    assert int(parent) == maintenance
    assert not os.path.exists(f"/proc/{pid}")
    assert fleet.stop() == 0


def test_on_death_hook_is_called_for_the_last_deaths_before_the_exit(stage: Stage, said: Path):
    job = stage.enqueue("d:dies", '{"how": "exit"}')
    fleet = stage.start("--until-empty", handlers=stage.write("work.py", MOURNING), workers=1)
    fleet.wait_exit()
    assert stage.state(job) == "failed"
    assert len(lines(said, f"death {job} ")) == 2


def test_without_an_on_death_hook_no_process_is_forked_for_deaths(stage: Stage):
    fleet = stage.run_fleet(workers=1)
    stage.wait_state(stage.enqueue("c:abort"), "failed")
    assert not any(event.get("process") == "on_death" for event in fleet.log)
    assert fleet.stop() == 0


SDK = """
import atexit
import os
import queue
import threading
import time

from jobherd import Job, handler, on_child_start, on_failure

class Sdk:
    '''An SDK as Sentry's is: events go to a queue, and a thread sends them, slowly.'''
    def __init__(self):
        self.events = queue.Queue()
        threading.Thread(target=self.send, daemon=True).start()
    def send(self):
        while True:
            event = self.events.get()
            time.sleep(0.02)
            with open(os.environ["MOURNING"], "a") as file:
                file.write(event + "\\n")
            self.events.task_done()
    def flush(self):
        self.events.join()

sdk = Sdk()
HOW = os.environ["HOW"]

if HOW == "atexit":
    atexit.register(sdk.flush)

@on_child_start
def flushes():
    yield
    if HOW == "yield":
        sdk.flush()

@on_failure
def capture(job, outcome):
    sdk.events.put(f"event {job.id}")

@handler("s:fails", max_attempts=1)
def fails(n: int) -> None:
    raise ValueError("it is broken")
"""


@pytest.mark.parametrize("how", ["yield", "atexit"])
@pytest.mark.parametrize("end", ["drain", "recycling", "reload"])
def test_events_of_an_sdk_with_a_sender_thread_all_arrive(
    stage: Stage, said: Path, monkeypatch: pytest.MonkeyPatch, how: str, end: str
):
    monkeypatch.setenv("HOW", how)
    jobs = stage.enqueue_many("s:fails", 30)
    settings = {"max_jobs": 4, "jitter": 0} if end == "recycling" else {}
    fleet = stage.run_fleet(handlers=stage.write("work.py", SDK), workers=2, **settings)
    stage.wait_all(jobs, "failed")
    if end == "reload":
        fleet.signal(signal.SIGHUP)
        stage.wait(lambda: len(lines(said)) == 30, "the replaced workers to flush")
    assert fleet.stop() == 0
    assert sorted(lines(said)) == sorted(f"event {job}" for job in jobs)
