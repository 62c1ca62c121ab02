"""Judges the fleet: supervisors, and queues, kinds and keys that none of them serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.supervisor.cli.doctor.finding import Finding
from jobherd.workers.inspect.phrases import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jobherd.supervisor.cli.doctor.finding import Row, Weight


def fleet(row: Row, unserved: Iterable[Row], unhandled: Iterable[Row]) -> Iterator[Finding]:
    """Judge whether supervisors and workers run, and which queues and kinds no worker serves."""
    if not row["supervisors"]:
        weight: Weight = "wrong" if row["waiting"] else "note"
        tail = ", and jobs wait" if row["waiting"] else ""
        yield Finding(
            weight, "fleet", f"no supervisor holds a lease: nothing runs{tail}", "start one: jobherd run --handlers ..."
        )
    elif not row["workers"] and not row["remote"]:
        yield Finding("wrong", "fleet", "no worker is registered", "see the supervisor's log: do its handlers load?")
    else:
        remote = f", and {row['remote']} remote workers are registered" if row["remote"] else ""
        holders = count(row["supervisors"], "supervisor holds a lease", "supervisors hold leases")
        text = f"{holders}, with {count(row['workers'], 'worker', 'workers')}{remote}"
        yield Finding("ok", "fleet", text)
    if row["expired"] and row["supervisors"]:
        yield Finding(
            "note",
            "fleet",
            f"{count(row['expired'], 'supervisor has', 'supervisors have')} an expired lease: other supervisors "
            "reclaim the jobs",
            "nothing, unless the lease stays expired",
        )
    if len(row["versions"] or ()) > 1:
        yield Finding(
            "note", "fleet", f"versions {', '.join(row['versions'])} run at the same time", "finish the upgrade"
        )
    for queue in unserved:
        if queue["idle"]:
            yield Finding(
                "wrong",
                "queues",
                f"no supervisor serves queue {queue['queue']}: job {queue['id']} ({queue['kind']}) has been due for "
                f"{duration(queue['waited'])}, "
                f"and {count(queue['idle'], 'worker is', 'workers are')} idle",
                f"start a supervisor with --queues {queue['queue']}, or without --queues; if that job costs more "
                "than any budget that serves the "
                "queue, a larger --budget",
            )
        elif row["workers"] or row["remote"]:
            yield Finding(
                "note",
                "queues",
                f"no job of queue {queue['queue']} runs: job {queue['id']} ({queue['kind']}) is due for "
                f"{duration(queue['waited'])}; all workers are busy",
                "add workers (kill -TTIN the supervisor), or let some serve this queue first",
            )
    for kind in unhandled:
        yield Finding(
            "wrong",
            "kinds",
            f"no worker has ever declared the kind {kind['kind']}; job {kind['job']}{_more(kind)} for it",
            "load the module that has its handler, or correct the name at the producer",
        )


def keys(lacking: Iterable[Row]) -> Iterator[Finding]:
    """Judge jobs that wait for a key.

    `fleet` reports jobs that wait for a handler, by their kind.
    """
    for one in lacking:
        if one["code"] == "KEY_MISSING":
            yield Finding(
                "wrong",
                "keys",
                f"job {one['job']}{_more(one)} for a key that the worker which claimed it did not have",
                "give the supervisors JOBHERD_KEYS or JOBHERD_KEYS_FILE with the key that its producer has: jobherd "
                "job shows what was missing",
            )


def _more(row: Row) -> str:
    """Return the end of a subject, for jobs that wait like the one that is named."""
    more = row["jobs"] - 1
    return f" and {count(more, 'other job', 'other jobs')} wait" if more else " waits"
