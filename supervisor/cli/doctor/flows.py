"""Judges flows and blocked jobs for `jobherd doctor`. Sends no statement to the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobherd.supervisor.cli.console import show_span
from jobherd.supervisor.cli.doctor.finding import Finding
from jobherd.workers.inspect.phrases import count

if TYPE_CHECKING:
    from collections.abc import Iterator

Row: TypeAlias = "dict[str, Any]"

LAG: Final = 10.0
"""Seconds after which an end that is not passed on is worth a warning, as for the alert JobherdResolverLag."""


def flows(row: Row) -> Iterator[Finding]:
    """Judge whether the ends of jobs are passed on, and whether each open flow has a job left."""
    if row["lag"] is not None and row["lag"] > LAG:
        waiting = f", and {count(row['blocked'], 'job waits', 'jobs wait')} for other jobs" if row["blocked"] else ""
        yield Finding(
            "wrong",
            "flows",
            f"a job of a flow ended {show_span(row['lag'])} ago, and no maintenance process has released the jobs "
            "that wait for it" + waiting,
            "jobherd fleet shows the supervisors, each of which has one; a user's transaction that locks blocked jobs "
            "is listed above",
        )
    for job in row["asleep"]:
        yield Finding(
            "wrong",
            "flows",
            f"job {job} is suspended, although the child jobs that it waits for ended more than a minute ago",
            "jobherd fleet shows the supervisors, each of which has a maintenance process that wakes such jobs; "
            f"jobherd retry {job} runs it now",
        )
    for flow in row["stalled"]:
        yield Finding(
            "wrong",
            "flows",
            f"flow {flow} is open, and none of its jobs is left: they were deleted with SQL",
            "none: a maintenance process counts them as canceled within the hour",
        )
