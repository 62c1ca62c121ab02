"""Explains why a job has not started: scheduled, blocked by other jobs, held back, or behind others.

The sentences of `explain.py` for these states. Pure: must not query the database.
"""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.outcome import WORKER_RESOLUTION_ERROR
from jobherd.workers.inspect.failures import given_code
from jobherd.workers.inspect.phrases import count, duration, nth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LATE: Final = 60.0
"""Seconds that a job is due while workers are idle, after which its queue seems to be served by no
supervisor.
"""
MOST: Final = 10_000
"""Most jobs counted in front of it."""
_WANTED: Final = {"completed": "to complete", "failed": "to fail", "ended": "to end"}


def scheduled(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
    """Return why a job is not due, and what to do."""
    if job.get("children_flow"):
        return _gathering(job)
    if job.get("signal_topic"):
        return _suspended(job, clock)
    when = f"{clock(job['run_at'])}, in {duration(job['run_at'] - job['asked_at'])}"
    tries = f"{nth(job['attempts'])} of {job['max_attempts']} attempts"
    now, remedy = _unhandled(job)
    now.append(
        f"retrying: its {tries} ended without success, and the next is at {when}"
        if job["attempts"]
        else f"scheduled: it is not due before {when}"
    )
    if job["error"]:
        now.append(f"last error: {error_of(job)}")
    return now + list(_shut(job, clock)), remedy or [f"jobherd retry {job['id']}   to run it now"]


def _unhandled(job: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return that no worker has a handler for the job, and what to do; nothing if one may have it."""
    if not job["declared"] and not job["attempts"]:
        now = f"waiting: no worker has ever declared the kind {job['kind']}"
    elif job["error_code"] == WORKER_RESOLUTION_ERROR:
        now = f"waiting: the worker that claimed it last has no handler for kind {job['kind']}"
    else:
        return [], []
    return [now], [
        "jobherd run --handlers ...   to start a supervisor with the module that has the handler",
        "jobherd check --handlers ...   to list the kinds of a module",
        f"jobherd cancel {job['id']}   if the producer named the kind wrongly",
    ]


def _suspended(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
    """Return for which signal a job waits, and what to do."""
    name, topic, until = job["signal_name"], job["signal_topic"], job["signal_until"]
    own = topic == f"job/{job['id']}/{name}"
    end = "without a timeout" if until is None else f"until {clock(until)}, in {duration(until - job['asked_at'])}"
    words = f"suspended: it waits for the signal {name!r}" + ("" if own else f" of the topic {topic!r}") + f", {end}"
    send = f"jobherd signal {shlex.quote(name)} --job {job['id']}" if own else f"jobherd signal {shlex.quote(topic)}"
    return [words], [f"{send}   to send it"]


def _gathering(job: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return for which child jobs a job waits, and what to do."""
    flow, jobs, pending = job["children_flow"], job["children_jobs"], job["children_pending"]
    if not pending:
        return ["suspended: its child jobs have ended, and a maintenance process is about to wake it"], []
    step = f"of step {job['children_step']!r}"
    words = f"suspended: it waits for {count(jobs, 'child job', 'child jobs')} {step}, of which {jobs - pending:,} "
    words += f"{'has' if jobs - pending == 1 else 'have'} ended"
    return [words], [f"jobherd flow tree {flow}   to see the child jobs"]


def blocked(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
    """Return which jobs a job waits for, and what to do."""
    found, remedy = job["waits_for"] or [], []
    now = [
        f"blocked: it waits for job {one['job']} {_WANTED[one['wanted']]}"
        + (f", which is {one['state']} (kind {one['kind']})" if one["state"] else "")
        for one in found
    ] or ["blocked: the jobs that it waited for have ended, and a maintenance process is about to release it"]
    if more := job["waits_for_count"] - len(found):
        now.append(f"it also waits for {count(more, 'other job', 'other jobs')}")
    if job["run_at"] > job["asked_at"]:
        now.append(f"it is not due before {clock(job['run_at'])}")
    if found:
        remedy.append(f"jobherd why {found[0]['job']}   to see what that job waits for")
    return now, remedy


def waiting(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
    """Return why a due job has not started, and what to do."""
    remedy: list[str] = []
    due = (job["asked_at"] - max(job["run_at"], job["created_at"])).total_seconds()
    now = list(_shut(job, clock))
    if now:
        remedy = [_open(gate) for gate in job["gates"] or () if gate["paused_at"]]
    elif not job["workers"]:
        now.append("waiting: no supervisor with workers holds a lease")
        remedy.append("jobherd run --handlers ...   to start one")
    elif (unhandled := _unhandled(job))[0]:
        now, remedy = unhandled
    elif job["idle"] and not job["queue_runs"] and due > LATE:
        now.append(
            f"waiting: apparently no supervisor serves queue {job['queue']}: the job has been due for {duration(due)}, "
            f"and {count(job['idle'], 'worker is', 'workers are')} idle"
        )
        remedy.append(f"jobherd run --queues {job['queue']} ...   to serve it")
    elif job["ahead"] or job["ahead_elsewhere"]:
        now.append(
            f"waiting: {_before(job)} ahead of it" + ("" if job["idle"] else f", and {_all_busy(job['workers'])}")
        )
        if any(gate["weights"] is not None or gate["each_running"] for gate in job["gates"] or ()):
            now.append(f"partitions of queue {job['queue']} take turns, so jobs of others may start after it")
        remedy += _turns(job, now)
    elif not job["idle"]:
        now.append(f"waiting: it is the first of queue {job['queue']}; {_all_busy(job['workers'])}")
        remedy += _turns(job, now)
    else:
        now.append(
            f"ready: it is the first of queue {job['queue']}, due for {duration(due)}, "
            "and a worker is idle: it should start now"
        )
    if job["alone"]:
        now.append("it will be claimed alone, because the last worker that had it died")
    if job["error"]:
        tries = f"its {nth(job['attempts'])} of {job['max_attempts']} attempts ended without success"
        now.append(f"{tries if job['attempts'] else 'last error'}: {error_of(job)}")
    return now, remedy


def _before(job: Mapping[str, Any]) -> str:
    """Return what is claimed before it.

    Jobs of its own queue, and of queues that come strictly before it.
    """
    counted = [(job["ahead"], f"of queue {job['queue']}")] if job["ahead"] else []
    if queues := job["queues_before"]:
        others = (
            f"of queue {job['largest_before']}"
            if queues == 1
            else f"of {queues} other queues, most of them of {job['largest_before']},"
        )
        counted.append((job["ahead_elsewhere"], others))
    parts = [f"{'a job' if many == 1 else _many(many)} {where}" for many, where in counted]
    return " and ".join(parts) + (" is" if sum(many for many, _ in counted) == 1 else " are")


def _many(jobs: int) -> str:
    return f"{jobs:,} jobs" if jobs < MOST else f"more than {MOST - 1:,} jobs"


def _turns(job: Mapping[str, Any], now: list[str]) -> Iterator[str]:
    """Add how the workers choose between the queues, and yield how to give this queue more."""
    queue = job["queue"]
    if job["turns"] and job["sharing"] and not job["idle"]:
        now.append(f"the workers take turns between {job['sharing'] + 1:,} queues that hold jobs, {queue} among them")
        yield f"jobherd run --queue-weights {queue}=3 ...   to give queue {queue} a larger share of the workers"
    if job["queues_before"]:
        how = "they have a lower number in queue_priorities" if job["turns"] else "the order of the queues is strict"
        now.append(f"jobs of other queues come before it because {how}")
        yield (
            f"jobherd run --queue-priorities {queue}=-1 ...   to serve queue {queue} before them"
            if job["turns"]
            else "jobherd run --queue-order turns ...   to let the workers take turns between the queues"
        )


def _shut(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> Iterator[str]:
    """Yield the pauses and limits that hold the job back."""
    for gate in job["gates"] or ():
        what = _gate(gate)
        if gate["paused_at"]:
            reason = f", reason: {gate['reason']}" if gate["reason"] else ""
            again = f"; it resumes at {clock(datetime.fromisoformat(gate['resume_at']))}" if gate["resume_at"] else ""
            actor, when = gate["paused_by"] or "an unknown user", clock(datetime.fromisoformat(gate["paused_at"]))
            yield f"waiting: {what} was paused by {actor} at {when}{reason}{again}"
        elif gate["max_running"] is not None and gate["running"] >= gate["max_running"]:
            yield (
                f"waiting: the concurrency limit allows at most {count(gate['max_running'], 'job', 'jobs')} of {what} "
                f"at a time, and {count(gate['running'], 'runs', 'run')}"
            )
        elif gate["partition_running"] is not None and gate["partition_running"] >= gate["each_running"]:
            yield (
                f"waiting: it waits for its partition {gate['partition']}: {gate['partition_running']:,} of "
                f"{gate['each_running']:,} run"
            )
        elif gate["partition_waits"]:
            yield (
                f"waiting: it waits for its partition {gate['partition']}: an earlier job of it waits for a retry or "
                "is set aside, and the order is strict"
            )
        elif gate["partition_opens_at"]:
            at = clock(datetime.fromisoformat(gate["partition_opens_at"]))
            what = f"{gate['each_rate']} starts of its partition {gate['partition']}"
            yield f"waiting: the rate limit allows {what}, and the next one is at {at}"
        elif gate["tokens"] == 0:
            yield (
                f"waiting: the rate limit allows {gate['rate']} starts of {what}, and the next one is at "
                f"{clock(datetime.fromisoformat(gate['opens_at']))}"
            )


def _gate(gate: Mapping[str, Any]) -> str:
    return (
        "everything"
        if gate["scope"] == "all"
        else f"{'its queue' if gate['scope'] == 'queue' else 'its kind'} {gate['name']}"
    )


def _open(gate: Mapping[str, Any]) -> str:
    what = {"queue": gate["name"], "kind": f"--kind {gate['name']}", "all": "--all"}[gate["scope"]]
    return f"jobherd resume {what}   to resume"


def _all_busy(workers: int) -> str:
    return "the only worker is busy" if workers == 1 else f"all {workers:,} workers are busy"


def error_of(job: Mapping[str, Any]) -> str:
    """Return the code and the first line of a job's error."""
    first = (job["error"] or "").splitlines()
    return (
        ": ".join(part for part in (given_code(job["error_code"]), first[0] if first else "") if part)
        or "unknown reason"
    )
