"""Explains in sentences why a job is in its state, and how it got there.

It gets one row, `sql/queries/observe/explain_job.sql`, and neither queries nor changes anything.
What the row does not show is not guessed: a queue that seems unserved is described as seeming so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobherd.workers.inspect.explain_waiting import MOST, blocked, error_of, scheduled, waiting
from jobherd.workers.inspect.phrases import count, duration, moment_or_none, nth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime


__all__ = ["MOST", "Explanation", "ended_with_flow", "explain"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one job's state."""

    now: list[str]
    """Why the job is in its state."""
    before: list[str] = field(default_factory=list)
    """Its attempts, one per line, the oldest first."""
    remedy: list[str] = field(default_factory=list)
    """What to do about it. Empty if nothing needs to be done."""


def explain(
    job: Mapping[str, Any], history: Sequence[Mapping[str, Any]], clock: Callable[[datetime], str]
) -> Explanation:
    """Return the explanation of a job.

    job: the row. history: its attempts, as the view shows them.
    clock: formats a timestamp for the reader.
    """
    match job["state"]:
        case "running":
            now, remedy = _running(job, clock)
        case "completed" | "failed" | "cancelled" | "expired":
            now, remedy = _over(job, history, clock)
        case "blocked":
            now, remedy = blocked(job, clock)
        case _ if job["run_at"] > job["asked_at"]:
            now, remedy = scheduled(job, clock)
        case _:
            now, remedy = waiting(job, clock)
    if job["schedule"]:
        stands_for = f", also for {count(job['missed'], 'missed instant', 'missed instants')}" if job["missed"] else ""
        now.append(f"enqueued by schedule {job['schedule']} for {clock(job['scheduled_for'])}{stands_for}")
    if job.get("flow"):
        now.append(f"it is node {job['node']} of flow {job['flow']}, {job['flow_name']}, which is {job['flow_state']}")
    return Explanation(now, [_attempt(one, clock) for one in history], remedy)


def ended_with_flow(job: Mapping[str, Any]) -> bool:
    """Return whether the job did not complete and neither did its flow, which a retry of the job does not change."""
    return job["state"] in {"failed", "cancelled", "expired"} and job.get("flow_state") in {"failed", "cancelled"}


def _running(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
    since = f"since {clock(job['started_at'])}, for {duration(job['asked_at'] - job['started_at'])}"
    if job["host"] is None:
        return [
            (
                f"running {since}, by a worker that is not registered any more: "
                "a supervisor returns the job to its queue within seconds"
            ),
            "if the job's transaction is still open, the job waits until PostgreSQL ends that session",
        ], ["jobherd doctor   to see whether Jobherd may end that session"]
    remote, expired = job["via"] is not None, job["lease_left"] < 0
    remedy = [] if remote or expired else [f"jobherd stack {job['id']}   to see where it is"]
    remedy += [] if job["cancelled"] else [f"jobherd cancel {job['id']}   to end it"]
    where = (
        f"by remote worker {job['host']} via {job['via']}"
        if remote
        else f"on {job['host']} in process {job['pid']} (worker {job['slot']})"
    )
    now = [f"running {since}, {where}: attempt {job['attempts']} of {job['max_attempts']}"]
    if job["claimed_together"]:
        now.append(
            f"it was claimed together with {count(job['claimed_together'], 'other', 'others')}, "
            "so it may not have started: another of these jobs may be running in that process"
        )
    if expired:
        lease = "the lease of its worker" if remote else "its supervisor's lease"
        now.append(f"{lease} expired {duration(-job['lease_left'])} ago: another supervisor will reclaim the job")
    if job["cancelled"]:
        now.append(
            "cancellation was requested and it has not ended yet: "
            + (
                "the gateway has requested the stop from its worker"
                if remote
                else "Jobherd interrupts the job, then terminates its process, then kills it"
            )
        )
    if progress := job["progress"]:
        share = f"{progress['fraction']:.0%}" if isinstance(progress.get("fraction"), int | float) else "?"
        now.append(f"its progress is {share}" + (f": {progress['note']}" if progress.get("note") else ""))
    if job["crashes"]:
        now.append(f"{count(job['crashes'], 'process has', 'processes have')} died with it before")
    return now, remedy


def _over(
    job: Mapping[str, Any], history: Sequence[Mapping[str, Any]], clock: Callable[[datetime], str]
) -> tuple[list[str], list[str]]:
    when = clock(job["finished_at"])
    again = [f"jobherd retry {job['id']}   to run it again, with the same id and its history"]
    if ended_with_flow(job):
        again = [
            f"jobherd flow retry {job['flow']}   to run again what failed or was canceled in its flow",
            f"jobherd retry {job['id']}   to run only this job: flow {job['flow']} stays {job['flow_state']}",
        ]
    match job["state"]:
        case "completed":
            ran = f", after {duration(job['finished_at'] - job['started_at'])}" if job["started_at"] else ""
            return [f"completed at {when}{ran}, in its {nth(job['attempts'])} attempt"], []
        case "cancelled":
            began = "while it ran" if job["started_at"] else "before it started"
            return [f"cancelled at {when}, {began}" + (f": {job['error']}" if job["error"] else "")], again
        case "expired":
            return [
                f"expired at {when}: its time limit for starting had passed"
                + (f" ({job['error']})" if job["error"] else "")
            ], again
    last = history[-1] if history else {}
    post_mortem = last.get("post_mortem")
    sentence = post_mortem.get("sentence") if isinstance(post_mortem, dict) else None
    now = [f"failed at {when}: {sentence.rstrip('.') if sentence else error_of(job)}"]
    if job["error_code"] == "WORKER_CRASHED":
        now.append(
            f"{count(job['crashes'], 'process has', 'processes have')} died with it, "
            "which is the most that its kind allows"
        )
    elif last.get("outcome") == "failed" and job["attempts"] >= job["max_attempts"]:
        now.append(f"no attempt was left: that was the {nth(job['attempts'])} of {job['max_attempts']}")
    else:
        now.append(
            f"it was not retried, although {job['attempts']} of {count(job['max_attempts'], 'attempt', 'attempts')} "
            f"{'was' if job['attempts'] == 1 else 'were'} made: an error of this kind is permanent"
        )
    return now, again


def _attempt(attempt: Mapping[str, Any], clock: Callable[[datetime], str]) -> str:
    start, end = moment_or_none(attempt.get("started_at")), moment_or_none(attempt.get("finished_at"))
    ran = f" after {duration(end - start)}" if start and end else ""
    where = f" on {attempt['ran_on']}" if attempt.get("ran_on") else ""
    post_mortem = attempt.get("post_mortem")
    why = (post_mortem.get("sentence") if isinstance(post_mortem, dict) else None) or attempt.get("error")
    when = clock(end) if end else "at an unknown time"
    line = f"attempt {attempt.get('attempt', '?')}{where}: {attempt.get('outcome', '?')}{ran}, {when}"
    return line + (f": {why.splitlines()[0]}" if why else "")
