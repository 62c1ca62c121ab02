"""Batch handlers in a worker: which jobs share a call, and that no job of a call decides the outcome of another."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobherd.workers.ipc.current_work import Interruption, Phase, Reason
from jobherd.workers.ipc.pipes import EXIT_RECYCLE, EXIT_REQUESTED, MoreWork
from tests.support.seats import Bench, count_of

if TYPE_CHECKING:
    from tests.support.gate import Gate

TOGETHER = str(Path(__file__).parents[1] / "acting_together.py")


def start(bench: Bench, **settings: Any):
    return bench.start(handlers=(TOGETHER,), **{"most_claimed": 100, "claim_window": 0.1} | settings)


def put(bench: Bench, kind: str, *payloads: str) -> list[int]:
    """Enqueue so that one claim finds them all."""
    with bench.connection.transaction():
        return [bench.insert(kind, payload) for payload in payloads]


def sms(bench: Bench, *says: str) -> list[int]:
    return put(bench, "sms:send", *(f'{{"to": "{n}", "says": "{word}"}}' for n, word in enumerate(says)))


@pytest.mark.promise("D30")
def test_batch_handler_gives_each_job_its_own_outcome(bench: Bench):
    put(bench, "sms:send", '{"wrong": 1}')
    ids = sms(bench, "ok", "nack", "poison", "error", "object", "silent", "ok")
    child = start(bench)
    unfit, first, nack, poison, error, unstorable, silent, last = (
        bench.wait(job, "completed", "failed", "retrying") for job in (ids[0] - 1, *ids)
    )
    assert (unfit["state"], unfit["error_code"]) == ("failed", "PAYLOAD_INVALID")
    assert first["result"] == {"to": "0", "together": 4}, "the fifth job of the call has an invalid payload"
    assert (nack["state"], nack["error_code"], nack["error"]) == ("retrying", "NACK", "busy")
    assert (poison["state"], poison["error_code"]) == ("failed", "POISON")
    assert (error["state"], error["error_code"]) == ("retrying", "UNHANDLED_ERROR")
    assert "its own error" in error["error"]
    assert (unstorable["state"], unstorable["error_code"]) == ("failed", "WORKER_SERIALIZATION_ERROR")
    assert (silent["state"], silent["error_code"]) == ("retrying", "BATCH_ANSWER_MISSING")
    assert last["result"] == {"to": "6", "together": 3}
    assert child.dismiss() == EXIT_REQUESTED
    assert count_of(child, "sms:send", "ok") == 2


def test_exception_of_a_call_fails_each_jobs_attempt_and_a_job_on_its_last_attempt_runs_alone(bench: Bench):
    ids = sms(bench, "ok", "ok", "all")
    bench.ask("UPDATE jobherd.ready SET attempts = 2 WHERE id = %(id)s", id=ids[0])
    child = start(bench)
    alone = bench.wait(ids[0], "completed", "failed")
    neighbour, culprit = (bench.wait(job, "retrying") for job in ids[1:])
    assert (alone["state"], alone["result"]) == ("completed", {"to": "0", "together": 1})
    for row in (neighbour, culprit):
        assert (row["state"], row["attempts"], row["error_code"]) == ("retrying", 1, "UNHANDLED_ERROR")
        assert "all of it" in row["error"]
    assert child.dismiss() == EXIT_REQUESTED


def test_exception_whose_class_cannot_be_read_fails_the_attempts_and_not_the_worker(bench: Bench):
    ids = sms(bench, "ok", "lies")
    child = start(bench)
    rows = [bench.wait(job, "retrying") for job in ids]
    assert [(row["error_code"], row["crashes"]) for row in rows] == [("UNHANDLED_ERROR", 0)] * 2
    assert child.dismiss() == EXIT_REQUESTED


def test_system_exit_while_payloads_are_read_fails_every_job_of_the_call(bench: Bench):
    jobs = sms(bench, "ok", "exit", "ok")
    start(bench)
    rows = [bench.wait(job, "completed", "failed", "retrying") for job in jobs]
    assert [(row["state"], row["error_code"]) for row in rows] == [("retrying", "UNHANDLED_ERROR")] * 3


def test_job_that_has_crashed_a_worker_runs_alone(bench: Bench):
    ids = sms(bench, "ok", "ok", "ok")
    bench.ask("UPDATE jobherd.ready SET crashes = 1 WHERE id = %(id)s", id=ids[1])
    start(bench)
    assert [bench.wait(job, "completed")["result"]["together"] for job in ids] == [2, 1, 2]


def test_canceling_one_job_of_a_call_does_not_interrupt_the_others(bench: Bench, gate: Gate):
    ids = put(bench, "sms:gated", "{}", "{}", "{}")
    child = start(bench)
    arrival = gate.wait_arrival("gate 3")
    now = child.board.now()
    assert now is not None
    assert (now.phase, now.job) == (Phase.TOGETHER, ids[0])
    assert [one.job for one in child.board.company(now)] == ids[1:]
    assert bench.ask("SELECT jobherd.cancel(%(id)s) AS answer", id=ids[0])[0]["answer"] == "cancelling"
    child.interrupt(Reason.CANCEL)
    arrival.open("done")
    assert bench.wait(ids[1], "completed")["progress"] == {"fraction": 0.5, "note": "half"}
    assert [bench.wait(job, "cancelled", "completed", "retrying")["state"] for job in ids] == [
        "cancelled",
        "completed",
        "completed",
    ]
    assert child.dismiss() == EXIT_REQUESTED


def test_drain_releases_all_jobs_of_a_call(bench: Bench, gate: Gate):
    ids = put(bench, "sms:gated", "{}", "{}")
    child = start(bench)
    gate.wait_arrival("gate 2")
    bench.ask("SELECT jobherd.pause('default')")
    child.interrupt(Reason.DRAIN)
    assert child.wait() == EXIT_RECYCLE
    assert [(bench.wait(job, "ready")["attempts"]) for job in ids] == [0, 0]


def test_timeout_interrupts_the_whole_batch_call(bench: Bench, gate: Gate):
    ids = put(bench, "sms:slow", "{}", "{}")
    child = start(bench)
    assert [bench.wait(job, "retrying")["error_code"] for job in ids] == ["JOB_TIMEOUT"] * 2
    assert child.wait() == EXIT_RECYCLE


def test_call_has_no_more_jobs_than_its_batch_size_and_other_kinds_of_the_claim_run(bench: Bench):
    with bench.connection.transaction():
        ids = sms(bench, "ok", "ok", "ok")
        other = bench.insert("sms:single", "{}")
        ids += sms(bench, "ok", "ok", "ok", "ok")
    start(bench)
    # The worker has never run "sms:single", so this kind counts as long and ends the claim. The size
    # of a call therefore depends on the claims.
    sizes = [bench.wait(job, "completed")["result"]["together"] for job in ids]
    assert max(sizes) <= 5
    assert sizes[0] >= 3
    bench.wait(other, "completed")


def test_lingering_call_starts_when_it_is_full_or_another_kind_needs_the_worker(bench: Bench):
    child = start(bench)
    child.wait_idle()
    first = bench.insert("sms:linger", "1")
    child.nudge()
    bench.wait(first, "running")
    child.wait_idle()
    rest = put(bench, "sms:linger", "2", "3", "4")
    child.nudge()
    assert [bench.wait(job, "completed")["result"] for job in (first, *rest[:2])] == [3, 3, 3]
    bench.wait(rest[2], "running")
    child.wait_idle()
    other = bench.insert("sms:single", "{}")
    child.heard.clear()
    child.nudge()
    assert bench.wait(rest[2], "completed")["result"] == 1, "a job of another kind ends the wait"
    bench.wait(other, "completed")
    child.wait_report(MoreWork)
    assert {bench.job(job)["attempts"] for job in (first, *rest)} == {1}
    assert bench.ask("SELECT count(*) AS n FROM jobherd.attempts")[0]["n"] == 0
    child.wait_idle()
    assert child.dismiss() == EXIT_REQUESTED


def test_lingering_call_starts_after_its_linger_time(bench: Bench):
    job = bench.insert("sms:lingers_shortly", "1")
    start(bench)
    assert bench.wait(job, "completed")["result"] == 1


def test_call_does_not_linger_if_the_supervisor_has_flushed_outcomes_of_its_claim(bench: Bench, gate: Gate):
    """The supervisor's request may still be on its way. It must not find one of its jobs again under the same token."""
    with bench.connection.transaction():
        ids = [bench.insert("sms:gated", "{}"), bench.insert("sms:linger", "1")]
    child = start(bench, claim_window=0.0)
    arrival = gate.wait_arrival("gate 1")
    assert (now := child.board.now()) is not None
    assert bench.job(ids[1])["state"] == "running", "the job belongs to the same claim"
    child.board.announce_flush(now.token)
    later = bench.insert("sms:linger", "2")
    arrival.open()
    assert bench.wait(ids[1], "completed")["result"] == 1
    bench.wait(later, "running")
    assert child.dismiss() == EXIT_REQUESTED


def test_worker_dismissed_while_a_call_lingers_releases_its_job(bench: Bench):
    child = start(bench)
    child.wait_idle()
    job = bench.insert("sms:linger", "1")
    child.nudge()
    bench.wait(job, "running")
    child.wait_idle()
    assert child.dismiss() == EXIT_REQUESTED
    assert bench.wait(job, "ready")["attempts"] == 0


def test_job_canceled_while_its_call_lingers_does_not_run(bench: Bench):
    child = start(bench)
    child.wait_idle()
    first = bench.insert("sms:linger", "1")
    child.nudge()
    bench.wait(first, "running")
    child.wait_idle()
    bench.ask("SELECT jobherd.cancel(%(id)s)", id=first)
    child.board.interrupt(Interruption(Reason.CANCEL, bench.job(first)["token"], first))
    os.kill(child.pid, signal.SIGUSR2)
    rest = put(bench, "sms:linger", "2", "3")
    child.nudge()
    assert bench.wait(first, "cancelled")["attempts"] == 0
    assert [bench.wait(job, "completed")["result"] for job in rest] == [2, 2]


@pytest.mark.parametrize("paused", [True, False])
def test_no_job_joins_a_lingering_call_if_the_queue_is_paused_or_the_lease_has_expired(bench: Bench, paused: bool):
    child = start(bench)
    child.wait_idle()
    first = bench.insert("sms:linger", "1")
    child.nudge()
    bench.wait(first, "running")
    child.wait_idle()
    if paused:
        bench.ask("SELECT jobherd.pause('default')")
    else:
        bench.ask("UPDATE jobherd.supervisors SET lease_until = clock_timestamp() - interval '1 s'")
    second = bench.insert("sms:linger", "2")
    child.nudge()
    assert bench.wait(first, "completed")["result"] == 1
    assert bench.job(second)["state"] == "ready"
    os.kill(child.pid, signal.SIGKILL)


def test_hooks_run_for_each_job_of_a_batch_call(bench: Bench, capfd: pytest.CaptureFixture[str]):
    ids = put(bench, "sms:hooked", '"one"', '"refused"', '"two"')
    child = start(bench)
    assert [bench.wait(job, "completed", "failed")["result"] for job in ids] == [
        "2 of them: one",
        None,
        "2 of them: two",
    ]
    assert child.dismiss() == EXIT_REQUESTED
    said = capfd.readouterr().out
    for words in ("one ended ok", "refused ended poison", "two ended ok"):
        assert words in said + child.log()
    assert "not called around these batch handlers: sms:hooked" in child.log()


@pytest.mark.promise("D36")
def test_bytes_and_tenant_reach_single_and_batch_handlers(bench: Bench):
    def put_bytes(kind: str, data: bytes, payload: str = "{}") -> int:
        text = 'SELECT jobherd.enqueue_bytes(%(kind)s, %(data)s, \'{"tenant": "acme"}\', %(payload)s::jsonb) AS id'
        return int(bench.ask(text, kind=kind, data=data, payload=payload)[0]["id"])

    with bench.connection.transaction():
        single = put_bytes("bytes:single", b"\x00\xff", '{"name": "logo"}')
        together = [
            put_bytes("bytes:together", b"\x01"),
            put_bytes("bytes:together", b"\x02"),
            bench.insert("bytes:together", "{}"),
        ]
        missing = bench.insert("bytes:single", '{"name": "logo"}')
    start(bench)
    assert bench.wait(single, "completed")["result"] == "logo acme 00ff"
    assert [bench.wait(job, "completed")["result"] for job in together] == ["acme 01", "acme 02", "None "]
    assert bench.wait(missing, "failed")["error_code"] == "PAYLOAD_INVALID"
