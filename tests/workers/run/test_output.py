"""Output and log lines of handlers are stored with the attempt, from any code and of any size."""

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
def test_output_of_any_code_is_stored_with_the_attempt(bench: Bench):
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
    assert run(bench, child) == [], "a job without output has no log"
    assert run(bench, child, "talk:silent") == []


def test_binary_output_is_stored_and_a_flood_is_cut_to_its_latest_part(bench: Bench):
    child = start(bench, log_size=65536)
    (log,) = run(bench, child, how="binary")
    assert "ABCDEF" in log["output"]
    (log,) = run(bench, child, how="flood")
    assert log["output"].endswith("line 39999\n")
    assert 60_000 < len(log["output"]) <= 65536
    (log,) = run(bench, child, how="fork floods")
    assert all(f"line {n:05d}\n" in log["output"] for n in range(3000)), "the output of a forked process is complete"
    (log,) = run(bench, child, how="one flood")
    assert log["output"].endswith("xxthe end\n")
    assert len(log["output"]) <= 65536


def test_each_job_of_a_claim_has_its_own_log(bench: Bench):
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


def test_log_is_stored_whether_or_not_the_transaction_of_the_job_commits(bench: Bench):
    bench.ask("CREATE TABLE public.unique_in_the_end (n int, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")
    child = start(bench)
    for how in ("", "late"):
        (log,) = run(bench, child, "talk:pays", how=how)
        assert (log["output"], [entry["key"] for entry in log["entries"]]) == ("paid\n", ["pay"])


def test_printed_output_and_log_lines_reach_stderr_once(bench: Bench, capfd: pytest.CaptureFixture[str]):
    child = start(bench)
    run(bench, child, how="print")
    run(bench, child, how="logs")
    child.dismiss()
    said = capfd.readouterr().err
    assert said.count("printed print") == 1
    assert said.count("logged logs") == 1


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_printed_output_cannot_forge_a_log_line(bench: Bench, capfd: pytest.CaptureFixture[str], log_format: str):
    """A handler that printed part of a payload could insert log lines and terminal control characters."""
    child = start(bench, log_format=log_format)
    (log,) = run(bench, child, how="forges")
    assert log["output"].startswith(FORGED), "the stored output is unchanged"
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


def test_digest_separates_output_from_entries():
    assert digest(b"") is None
    assert digest(b"plain\n") == '{"output":"plain\\n"}'
    assert digest(b"\x1e[1]\n\x1ftwo") == '{"output":"two","entries":[[1]]}'
    assert digest(b"cut}\n\x1e{broken\n") == '{"output":"cut}\\n{broken\\n"}'
    assert os.linesep == "\n"
