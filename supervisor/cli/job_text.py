"""Formats states, keys and errors of jobs for several commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.supervisor.cli.console import show_moment, show_span
from jobherd.workers.inspect.failures import given_code

if TYPE_CHECKING:
    from datetime import datetime


STATES: Final = ("ready", "blocked", "scheduled", "retrying", "running", *FINAL_STATES)


def states(text: str) -> list[str]:
    """Parse a list of states, for argparse."""
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in STATES:
            message = f"{name[:40]!r} is not a state: one of {', '.join(STATES)}"
            raise argparse.ArgumentTypeError(message)
    return names


def since(start: datetime, end: datetime) -> str:
    """Return the time between two timestamps."""
    return show_span((end - start).total_seconds())


def when(job: dict[str, Any]) -> str:
    now = job["asked_at"]
    match job["state"]:
        case "running":
            return "for " + since(job["started_at"], now)
        case "completed" | "failed" | "cancelled" | "expired":
            return since(job["finished_at"], now) + " ago"
        case _ if job["run_at"] > now:
            return "in " + since(now, job["run_at"])
        case _:
            return "waits " + since(job["run_at"], now)


def reason_of(job: dict[str, Any]) -> str:
    """Return the last error, with its code if the handler gave one."""
    return ": ".join(str(part) for part in (given_code(job["error_code"]), job["error"]) if part)


def key_of(key: dict[str, Any]) -> str:
    """Return what a key is made of, or the beginning of its hash if that is hidden, or deleted with the key."""
    why = "deleted" if key["during"] is None else "hidden"
    return f"{key['key'][:12]} ({why})" if key["shown"] is None else str(key["shown"])


def holder_of(key: dict[str, Any], job: int) -> str:
    """Return which job holds the key of this job."""
    if key["holder"] is None:
        return "which no job holds"
    text = "which it holds" if key["holder"] == job else f"which job {key['holder']} holds"
    return f"{text} until {show_moment(key['until'])}" if key["during"] == "never" else text


def document(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as `--json` shows it, such as the columns of the view `jobherd.jobs` of a job."""
    return {name: value for name, value in row.items() if name != "asked_at"}
