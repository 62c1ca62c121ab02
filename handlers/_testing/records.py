"""Keeps the records of durable steps of the jobs that a test runs, over all attempts of each job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobherd.handlers._values.payload import check_payload

if TYPE_CHECKING:
    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._testing.ran import Ran


class Records:
    """The records of each job, by name of the step.

    A test that runs a handler directly has no job. Such a run continues the one before it of the same kind and payload,
    unless that one is completed.
    """

    def __init__(self) -> None:
        self._records: dict[object, dict[str, Any]] = {}

    def of(self, handler: AnyHandler, payload: object, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the records of a job. fields: its attributes; without an id, the test runs the handler directly."""
        return self._records.setdefault(fields.get("id") or (handler.kind, check_payload(payload)), {})

    def ended(self, handler: AnyHandler, payload: object, ran: Ran) -> Ran:
        """Note the end of a direct run, and return its result."""
        if ran.outcome.label == "ok":
            self._records.pop((handler.kind, check_payload(payload)), None)
        return ran
