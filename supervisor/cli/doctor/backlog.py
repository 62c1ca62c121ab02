"""Judges the backlog for `jobherd doctor`: jobs kept waiting by pauses, limits or failing attempts.

Sends no statement to the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobherd.supervisor.cli.console import show_span
from jobherd.supervisor.cli.doctor.finding import Finding
from jobherd.workers.inspect.failures import error_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Row: TypeAlias = "dict[str, Any]"

MANY: Final = 5
"""Retrying jobs of one kind and code that are worth a note. Fewer are part of normal operation."""


def paused(rows: Iterable[Row], *, most: int) -> Iterator[Finding]:
    """Judge what is paused.

    Args:
        rows: one for each pause.
        most: the highest number of waiting jobs that was counted.
    """
    for row in rows:
        called = {"all": "everything", "queue": f"queue {row['name']}", "kind": f"kind {row['name']}"}[row["scope"]]
        waiting = (
            f"{row['waiting']:,}{' or more' if row['waiting'] >= most else ''} ready jobs wait"
            if row["waiting"]
            else "no ready job waits"
        )
        reason = f" ({row['reason']})" if row["reason"] else ""
        resume = {"all": "--all", "queue": row["name"], "kind": f"--kind {row['name']}"}[row["scope"]]
        yield Finding(
            "note",
            "pauses",
            f"{called} was paused by {row['paused_by']} {show_span(row['seconds'])} ago{reason}: {waiting}",
            f"jobherd resume {resume}",
        )


def limits(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge concurrency limits: more jobs run than a limit allows."""
    for row in rows:
        if row["max_running"] is not None and row["running"] > row["max_running"]:
            yield Finding(
                "note",
                "limits",
                f"{row['running']} jobs of {row['scope']} {row['name']} run, and its concurrency limit is "
                f"{row['max_running']}",
                "none, if the limit was lowered lately: running jobs finish, and no further job starts until fewer run",
            )


def rules(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge limits and turns that cannot have the meant effect."""
    for row in rows:
        called = f"{row['scope']} {row['name']}"
        off = f"--kind {row['name']}" if row["scope"] == "kind" else row["name"]
        if row["unknown"]:
            used = "no worker has declared it" if row["scope"] == "kind" else "no handler names it and no job is in it"
            yield Finding(
                "note",
                "limits",
                f"{called} has a limit or turns, but {used}",
                f"correct the name: jobherd limit {off} off",
            )
        if row["undivided"]:
            yield Finding(
                "note",
                "limits",
                f"{called} has a rule for its partitions, but none of its ready jobs has a partition",
                "declare `partition=` on the handlers, or name the partition when you enqueue; "
                "see docs/how-to/operate/fairness.md",
            )
        if row["rate"] is not None and row["burst"] < row["needed"]:
            yield Finding(
                "note",
                "limits",
                f"{called} cannot reach its rate limit of {row['rate']} with a burst of {row['burst']}: "
                "more tokens come between two claims",
                f"jobherd limit {off} {row['rate']} --burst {row['needed']}",
            )


def retrying(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge jobs that fail at every attempt.

    They wait as scheduled jobs and do not count as failed until their last attempt.
    """
    for row in rows:
        if row["jobs"] >= MANY:
            error = f": {row['error']}" if row["error"] else ""
            yield Finding(
                "note",
                "retries",
                f"{row['jobs']:,}{' or more' if row['capped'] else ''} jobs of kind {row['kind']} failed with "
                f"{error_name(row['code'], None, row['error'])} and "
                f"run again, the first in {show_span(row['next_in'])}; job {row['job']}{error}",
                f"jobherd job {row['job']} shows the attempts; after the fix: jobherd jobs --state retrying --kind "
                f"{row['kind']} --limit 10000 "
                "--json | jq '.[].id' | jobherd retry -",
            )
