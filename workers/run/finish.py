"""Builds the record of an ended job that is written to the database, encrypted if its kind requires that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from jobherd.handlers._values.encryption import seal_log, seal_outcome
from jobherd.handlers._values.keys import KeyMissingError, ring
from jobherd.handlers._values.outcome import KEY_MISSING, Outcome
from jobherd.workers.job.finished import Finished, with_class

if TYPE_CHECKING:
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.run.job_kinds import JobKind


def finish(  # noqa: PLR0917 - keyword arguments cost a tenth of a microsecond, and this is called for each job
    row: JobRow,
    kind: JobKind,
    outcome: Outcome,
    ran: float,
    ended: float,
    usage: str | None,
    progress: str | None,
    log: str | None,
) -> Finished:
    """Return what to record for a job."""
    if kind.encrypts:
        outcome, log = encrypt(outcome, log, row)
    keep = kind.keep_completed if outcome.label == "ok" else kind.keep_failed
    return Finished(
        row.id,
        outcome,
        ran,
        ended,
        days_kept(row, keep) if keep == 0 else keep,
        usage if outcome.error_class is None else with_class(usage, outcome),
        progress,
        log=log,
    )


def days_kept(row: JobRow, days: int) -> int:
    """Return how many days a finished job is kept.

    A job with a webhook is kept at least one day, because the webhook call reads the history.
    """
    return 1 if days == 0 and row.extras is not None and orjson.loads(row.extras)["webhook"] is not None else days


def encrypt(outcome: Outcome, log: str | None, row: JobRow) -> tuple[Outcome, str | None]:
    """Return the outcome and log of a job of an encrypted kind, encrypted.

    Without keys they are withheld: what is written once stays written.
    """
    if outcome.error_class is not None:
        outcome = replace(outcome, error_class=None)  # It would be read by people without keys.
    # Jobherd's own code: a handler may give its failure the same one.
    if outcome.code == KEY_MISSING and outcome.label == "snoozed":
        return outcome, None
    try:
        ring()
    except KeyMissingError:
        error = None if outcome.error is None else "its text cannot be encrypted: no key is configured"
        return replace(outcome, result=None, error=error, traceback=None), None
    return seal_outcome(outcome, row.kind, row.id), seal_log(log, row.kind, row.id)
