"""A worker whose `before_claim` hook rejects or narrows its claims.

Jobs that the worker must not claim stay ready, and other workers can claim them.
"""

from __future__ import annotations

import select
import time
from pathlib import Path

import pytest

import jobherd.workers.claim.claim_conditions
import jobherd.workers.claim.claimer
import jobherd.workers.claim.restriction
import jobherd.workers.run.hooks
from jobherd import Only
from jobherd.workers.ipc import pipes
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED, MoreWork
from tests.support.seats import LIMIT, Bench, wait_for_line
from tests.workers.test_worker_life import claim_unheard

CHOOSY = str(Path(__file__).parents[1] / "choosy.py")


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """Return a function that sets the result of the hook from now on."""
    file = tmp_path / "answer"
    file.touch()
    monkeypatch.setenv("CHOOSES", str(file))
    return file.write_text


@pytest.mark.promise("B4", "B6")
@pytest.mark.parametrize(
    ("answer", "takes"),
    [
        ("Only(kinds=['pick:b'])", "b"),
        ("Only(kinds=[])", ""),
        ("Only(forbidden_flags=['gpu'])", "bc"),
        ("Only(max_cost={'memory_mb': 899.5})", "ac"),
        ("Only(max_cost={'memory_mb': 900, 'gpus': 0}, kinds=['pick:a', 'pick:b'])", "ab"),
        ("Only(condition=\"kind LIKE '%%:c' -- 100%%\")", "c"),
        (
            "Only(condition=sql.SQL('payload ->> {} = ANY (%(some)s::text[])').format('n'), parameters={'some': ('1', '2')})",
            "b",
        ),
    ],
)
def test_worker_claims_only_the_jobs_that_its_hook_allows_in_any_queue(bench: Bench, choose, answer, takes):
    choose(answer)
    jobs = {"a": bench.enqueue("pick:a"), "b": bench.enqueue("pick:b", n=1), "c": bench.enqueue("pick:c")}
    child = bench.start(handlers=(CHOOSY,))
    child.wait_idle()
    for name, job in jobs.items():
        assert bench.job(job)["state"] == ("completed" if name in takes else "ready"), name
    choose("")
    child.nudge()
    for job in jobs.values():
        bench.wait(job, "completed")
    assert child.dismiss() == EXIT_REQUESTED


@pytest.mark.promise("B4", "B5")
def test_worker_whose_hook_rejects_claims_calls_the_hook_again_without_a_wake(bench: Bench, choose, monkeypatch):
    monkeypatch.setattr(jobherd.workers.claim.restriction, "HOOK_PAUSE", 0.05)
    choose("nothing")
    job = bench.enqueue("pick:a")
    child = bench.start(handlers=(CHOOSY,))
    child.wait_idle()
    assert (child.board.claims, bench.job(job)["state"]) == ((0, 0), "ready"), "no claim was sent to the database"
    choose("")
    bench.wait(job, "completed")


def test_worker_whose_hook_rejects_every_claim_releases_a_job_whose_claim_answer_was_lost(
    bench: Bench, choose, monkeypatch
):
    monkeypatch.setattr(jobherd.workers.claim.restriction, "HOOK_PAUSE", 600.0)
    monkeypatch.setattr(jobherd.workers.claim.claimer, "CHECK", 0.0)
    choose("nothing")
    child = bench.start(handlers=(CHOOSY,))
    child.wait_idle()
    job = bench.enqueue("pick:a")
    claim_unheard(bench, job)
    child.nudge()
    bench.wait(job, "ready")
    choose("")
    child.nudge()
    assert bench.wait(job, "completed")["attempts"] == 1


def test_worker_passes_on_a_wake_only_once_while_its_hook_rejects_claims(bench: Bench, choose, monkeypatch):
    # Otherwise the worker calls the hook again after a pause, and may report without a wake.
    monkeypatch.setattr("jobherd.workers.claim.restriction.HOOK_PAUSE", 600.0)
    choose("nothing")
    bench.control.notified = True  # Otherwise the worker reports each time that it is idle.
    child = bench.start(handlers=(CHOOSY,))
    child.wait_idle()
    child.nudge()
    child.wait_report(MoreWork)
    child.wait_idle()
    times = child.board.times_idle
    pipes.wake(child.wake)  # A wake without a new job: another process has passed it on.
    until = time.monotonic() + LIMIT
    while child.board.times_idle < times + 1:
        assert time.monotonic() < until
        select.select([child.report], [], [], 0.001)
    assert not select.select([child.report], [], [], 0)[0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("raises", "cannot choose"),
        ("nonsense", "returned a dict: return None, False or Only"),
        ("broken", "no_such_column"),
        ("Only(max_cost={'memory mb': 1})", "is not a name"),
    ],
)
def test_failing_hook_allows_no_claim_and_its_error_is_logged(bench: Bench, choose, answer, says):
    choose(answer)
    job = bench.enqueue("pick:a")
    child = bench.start(handlers=(CHOOSY,))
    wait_for_line(child, says)
    child.wait_idle()
    assert bench.job(job)["state"] == "ready"
    choose("")
    child.nudge()
    bench.wait(job, "completed")


def test_hanging_before_claim_hook_is_interrupted_and_its_worker_replaced(bench: Bench, choose, monkeypatch):
    monkeypatch.setattr(jobherd.workers.run.hooks, "LIMIT", 0.1)
    choose("hangs")
    job = bench.enqueue("pick:a")
    child = bench.start(handlers=(CHOOSY,))
    assert child.wait() == EXIT_RECYCLE
    assert bench.job(job)["state"] == "ready"


def test_output_of_the_hook_is_not_stored_with_a_job(bench: Bench, choose):
    choose("talks")
    job = bench.enqueue("pick:talks")
    child = bench.fork(handlers=(CHOOSY,), capture=True)
    bench.wait(job, "completed")
    assert child.dismiss() == EXIT_REQUESTED
    assert bench.ask("SELECT output FROM jobherd.logs") == [{"output": "the job itself\n"}]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kinds": "pick:a"}, "kinds takes names"),
        ({"max_cost": {"memory_mb": -1}}, r"max_cost\['memory_mb'\] must be a number of 0 or more"),
        ({"forbidden_flags": "gpu"}, "forbidden_flags takes names"),
        ({"condition": 7}, "condition takes SQL"),
        ({"parameters": {"a": 1}}, "parameters are those of a condition"),
    ],
)
def test_invalid_filter_raises_when_it_is_created(given, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Only(**given)
