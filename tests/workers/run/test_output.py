"""What handlers print and log is kept with the attempt, whichever code wrote it, and however much."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobherd.workers.inspect.captured import digest
from tests.support.seats import Bench
from tests.workers.talking import FORGED

if TYPE_CHECKING:
    from tests.support.seats import Child

TALKING = str(Path(__file__).parents[1] / "talking.py")
OVER = ("completed", "failed", "retrying")


def start(bench: Bench, **settings: object) -> Child:
    child = bench.fork(handlers=(TALKING,), capture=True, **settings)
    child.wait_idle()
    return child


def run(bench: Bench, child: Child, kind: str = "talk:says", **payload: object):
    """Run one job; return the logs of its attempts."""
    job = bench.enqueue(kind, **payload)
    child.nudge()
    bench.wait(job, *OVER)
    child.wait_idle()
    return bench.ask("SELECT attempt, output, entries FROM jobherd.logs WHERE job = %(job)s ORDER BY at", job=job)


@pytest.mark.promise("B28", "B59")
def test_output_is_kept_whichever_code_wrote_it(bench: Bench):
    child = start(bench)
    for how, said in (
        ("print", ["printed print", "to stderr, without an end"]),
        ("logs", ["logged logs", "on\\ntwo lines"]),
        ("C", ["from C"]),
        ("program", ["from a program", "its error"]),
        ("raises", ["before it"]),
    ):
        (log,) = run(bench, child, how=how)
        assert all(words in log["output"] for words in said), (how, log)
        assert (log["attempt"], log["entries"]) == (1, None)
    (log,) = run(bench, child, how="entries")
    assert log["output"] == "between\n"
    clone, build = log["entries"]
    assert clone.pop("at") <= build.pop("at")
    assert clone == {
        "key": "clone",
        "command": "git clone 'a b'",
        "exit_code": 0,
        "duration": 1.5,
        "out": "cloned\ufffd\n",
    }
    assert build == {"key": "build", "command": "make", "exit_code": 2}
    (log,) = run(bench, child, how="secret")
    assert log["output"] == "postgresql://app:***@db/jobs\n"
    assert run(bench, child) == [], "who says nothing has no log"
    assert run(bench, child, "talk:silent") == []


def test_binary_and_floods_do_no_harm_and_the_latest_survives(bench: Bench):
    child = start(bench, log_size=65536)
    (log,) = run(bench, child, how="binary")
    assert "ABCDEF" in log["output"]
    (log,) = run(bench, child, how="flood")
    assert log["output"].endswith("line 39999\n")
    assert 60_000 < len(log["output"]) <= 65536
    (log,) = run(bench, child, how="fork floods")
    assert all(f"line {n:05d}\n" in log["output"] for n in range(3000)), (
        "a copy of the process takes nothing for itself"
    )
    (log,) = run(bench, child, how="one flood")
    assert log["output"].endswith("xxthe end\n")
    assert len(log["output"]) <= 65536


def test_in_a_batch_each_has_its_own(bench: Bench):
    child = start(bench, most_claimed=100)
    run(bench, child)
    with bench.connection.transaction():
        jobs = [bench.enqueue("talk:says", how=how) for how in ("print", "", "logs", "")]
    child.nudge()
    for job in jobs:
        bench.wait(job, "completed")
    kept = {row["job"]: row["output"] for row in bench.ask("SELECT job, output FROM jobherd.logs")}
    assert kept.keys() == {jobs[0], jobs[2]}
    assert "printed" in kept[jobs[0]]
    assert "logged" in kept[jobs[2]]


def test_a_job_s_own_transaction_keeps_its_log_whether_it_is_committed_or_not(bench: Bench):
    bench.ask("CREATE TABLE public.unique_in_the_end (n int, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")
    child = start(bench)
    for how in ("", "late"):
        (log,) = run(bench, child, "talk:pays", how=how)
        assert (log["output"], [entry["key"] for entry in log["entries"]]) == ("paid\n", ["pay"])


def test_what_was_printed_is_passed_on_and_what_was_logged_is_not_said_twice(
    bench: Bench, capfd: pytest.CaptureFixture[str]
):
    child = start(bench)
    run(bench, child, how="print")
    run(bench, child, how="logs")
    child.dismiss()
    said = capfd.readouterr().err
    assert said.count("printed print") == 1
    assert said.count("logged logs") == 1


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_what_was_printed_cannot_pass_for_a_line_of_the_log(
    bench: Bench, capfd: pytest.CaptureFixture[str], log_format: str
):
    """A handler that prints part of a payload wrote lines of its own between those of the log, with whatever moves a cursor."""
    child = start(bench, log_format=log_format)
    (log,) = run(bench, child, how="forges")
    assert log["output"].startswith(FORGED), "kept as it was"
    child.dismiss()
    said = capfd.readouterr().err
    assert not [letter for letter in ("\x1b", "\u202e", "\x9b", "\r") if letter in said]
    lines = said.splitlines()
    if log_format == "text":
        assert not [line for line in lines if line.startswith("{")]
        about = [line for line in lines if "forged" in line]
        assert len(about) == 2
        assert all(" INFO    worker 0: {" in line and "job=" in line for line in about)
        return
    events = [json.loads(line) for line in lines]
    assert not [event for event in events if event["message"] == "forged"]
    own = [event for event in events if event["logger"] == "jobherd.output"]
    long = "\u202etxt.exe \x9b31m " + "x" * 9000 + "the end"
    parts = [part.replace("\u202e", "\\x202e").replace("\x9b", "\\x9b") for part in (long[:8192], long[8192:])]
    assert [event["message"] for event in own] == [FORGED, FORGED, "\\x1b[2Jcleared", *parts, "no end"]
    assert {(event["level"], event["process"], event["kind"]) for event in own} == {("info", "worker 0", "talk:says")}


def test_what_there_is_to_keep():
    assert digest(b"") is None
    assert digest(b"plain\n") == '{"output":"plain\\n"}'
    assert digest(b"\x1e[1]\n\x1ftwo") == '{"output":"two","entries":[[1]]}'
    assert digest(b"cut}\n\x1e{broken\n") == '{"output":"cut}\\n{broken\\n"}'
    assert os.linesep == "\n"
