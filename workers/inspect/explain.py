"""Explains in sentences why a job is in its state, and how it got there.

It gets one row, `sql/queries/observe/explain_job.sql`, and neither queries nor changes anything.
What the row does not show is not guessed: a queue that seems unserved is described as seeming so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.inspect.failures import given_code
from jobherd.workers.inspect.phrases import count, moment_or_none, nth, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

LATE: Final = 60.0
"""Seconds that a job is due while workers are idle, after which its queue seems to be served by no
supervisor.
"""
MOST: Final = 10_000
"""Most jobs counted in front of it."""


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
            now, remedy = _blocked(job, clock)
        case _ if job["run_at"] > job["asked_at"]:
            now, remedy = _scheduled(job, clock)
        case _:
            now, remedy = _waiting(job, clock)
    if job["schedule"]:
        stands_for = f", also for {count(job['missed'], 'missed instant', 'missed instants')}" if job["missed"] else ""
        now.append(f"enqueued by schedule {job['schedule']} for {clock(job['scheduled_for'])}{stands_for}")
    return Explanation(now, [_attempt(one, clock) for one in history], remedy)


def _scheduled(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
    when = f"{clock(job['run_at'])}, in {span(job['run_at'] - job['asked_at'])}"
    tries = f"{nth(job['attempts'])} of {job['max_attempts']} attempts"
    now = [
        f"retrying: its {tries} ended without success, and the next is at {when}"
        if job["attempts"]
        else f"scheduled: it is not due before {when}"
    ]
    if job["error"]:
        now.append(f"last error: {_error(job)}")
    return now + list(_shut(job, clock)), [f"jobherd retry {job['id']}   to run it now"]


_WANTED: Final = {"completed": "to complete", "failed": "to fail", "ended": "to end"}


def _blocked(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
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


def _waiting(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
    remedy: list[str] = []
    due = (job["asked_at"] - max(job["run_at"], job["created_at"])).total_seconds()
    now = list(_shut(job, clock))
    if now:
        remedy = [_open(gate) for gate in job["gates"] or () if gate["paused_at"]]
    elif not job["workers"]:
        now.append("waiting: no supervisor with workers holds a lease")
        remedy.append("jobherd run --handlers ...   to start one")
    elif not job["declared"]:
        now.append(f"waiting: no worker has ever declared the kind {job['kind']}")
        remedy.append(
            "load the module that has its handler, or correct the name at the producer; "
            "jobherd check lists the handlers found"
        )
    elif job["idle"] and not job["queue_runs"] and due > LATE:
        now.append(
            f"waiting: apparently no supervisor serves queue {job['queue']}: the job has been due for {span(due)}, "
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
            f"ready: it is the first of queue {job['queue']}, due for {span(due)}, "
            "and a worker is idle: it should start now"
        )
    if job["alone"]:
        now.append("it will be claimed alone, because the last worker that had it died")
    if job["error"]:
        now.append(f"its {nth(job['attempts'])} of {job['max_attempts']} attempts ended without success: {_error(job)}")
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
                f"waiting: the concurrency limit allows at most {gate['max_running']:,} jobs of {what} at a time, "
                f"and {count(gate['running'], 'runs', 'run')}"
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


def _running(job: Mapping[str, Any], clock: Callable[[datetime], str]) -> tuple[list[str], list[str]]:
    since = f"since {clock(job['started_at'])}, for {span(job['asked_at'] - job['started_at'])}"
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
    if job["neighbours"]:
        now.append(
            f"it was claimed together with {count(job['neighbours'], 'other', 'others')}, "
            "so it may not have started: another of these jobs may be running in that process"
        )
    if expired:
        lease = "the lease of its worker" if remote else "its supervisor's lease"
        now.append(f"{lease} expired {span(job['lease_left'])} ago: another supervisor will reclaim the job")
    if job["cancelled"]:
        now.append(
            "cancellation was requested and it has not ended yet: "
            + (
                "the gateway has asked its worker to stop it"
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
    match job["state"]:
        case "completed":
            ran = f", after {span(job['finished_at'] - job['started_at'])}" if job["started_at"] else ""
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
    now = [f"failed at {when}: {sentence.rstrip('.') if sentence else _error(job)}"]
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
    ran = f" after {span(end - start)}" if start and end else ""
    where = f" on {attempt['ran_on']}" if attempt.get("ran_on") else ""
    post_mortem = attempt.get("post_mortem")
    why = (post_mortem.get("sentence") if isinstance(post_mortem, dict) else None) or attempt.get("error")
    when = clock(end) if end else "at an unknown time"
    line = f"attempt {attempt.get('attempt', '?')}{where}: {attempt.get('outcome', '?')}{ran}, {when}"
    return line + (f": {why.splitlines()[0]}" if why else "")


def _error(job: Mapping[str, Any]) -> str:
    first = (job["error"] or "").splitlines()
    return (
        ": ".join(part for part in (given_code(job["error_code"]), first[0] if first else "") if part)
        or "unknown reason"
    )


def _all_busy(workers: int) -> str:
    return "the only worker is busy" if workers == 1 else f"all {workers:,} workers are busy"
