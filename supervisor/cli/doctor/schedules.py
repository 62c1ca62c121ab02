"""Judges the schedules of periodic jobs for `jobherd doctor`. Sends no statement to the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobherd.supervisor.cli.console import show_span
from jobherd.supervisor.cli.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Row: TypeAlias = "dict[str, Any]"

LATE: Final = 60.0
"""Seconds after which an instant without a job is worth a warning: the misfire policy decides from then on."""


def schedules(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge schedules that do not run, or that run jobs of an unknown kind."""
    for row in rows:
        name = row["name"]
        if row["error"]:
            yield Finding(
                "wrong", "schedules", f"schedule {name} does not run: {row['error']}", f"jobherd schedule edit {name}"
            )
        elif row["retired"]:
            yield Finding(
                "note",
                "schedules",
                f"schedule {name} is retired: no handler has declared it for 10 minutes",
                f"none, if its handler was removed; else start workers that load it, or jobherd schedule delete {name}",
            )
        elif row["failing"]:
            yield Finding(
                "wrong",
                "schedules",
                f"schedule {name} is paused: {row['failing']}",
                f"jobherd job ID shows the error; when it is fixed: jobherd schedule resume {name}",
            )
        elif row["late"] is not None and row["late"] > LATE:
            yield Finding(
                "wrong",
                "schedules",
                f"schedule {name} was due {show_span(row['late'])} ago, and no maintenance process has "
                "enqueued its job",
                "jobherd fleet shows the supervisors; the log of one names a time zone that its host does not have",
            )
        elif not row["declared"]:
            yield Finding(
                "wrong",
                "schedules",
                f"schedule {name} enqueues jobs of kind {row['kind']}, which no worker has ever declared",
                "load the module that has its handler, or jobherd schedule edit "
                f"{name} --kind KIND; jobherd check lists the handlers found",
            )
