"""Encodes the progress that handlers report, and writes that of the running job to the status board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from jobherd.handlers._values.sanitize import sanitize

if TYPE_CHECKING:
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.process.interrupt import Interrupts

MOST_BYTES: Final = 2048


class ProgressReport:
    """The progress of the running job on the status board.

    exists: the job has reported some. encrypts: its kind is encrypted. Set before it runs.
    """

    def __init__(self, board: StatusBoard, interrupts: Interrupts) -> None:
        self.exists = False
        self.encrypts = False
        self._board = board
        self._interrupts = interrupts

    def clear(self) -> None:
        """Remove the progress of the previous job. Call it before the status board names the next one."""
        self._board.tell_progress(b"")
        self.exists = False

    def publish(self, fraction: float, note: str, data: object) -> None:
        """Write progress to the status board, unless a fork of the job's process reports it."""
        if not self._interrupts.forked:
            self.exists = True
            self._board.tell_progress(encode_progress(fraction, note, data, encrypts=self.encrypts))

    def latest(self) -> str | None:
        """Return the job's latest progress, which is recorded with its outcome."""
        return self._board.progress().decode(errors="replace") or None if self.exists else None


def encode_progress(fraction: float, note: str, data: object, *, encrypts: bool) -> bytes:
    """Return a JSON document of at most MOST_BYTES that PostgreSQL accepts.

    encrypts: the job's kind is encrypted. Only the fraction is kept then, because the status board
    and its copy in the database are read by people without keys.
    """
    record: dict[str, object] = {"fraction": fraction}
    if encrypts:
        note, data = "", None
    if note:
        record["note"] = note
    if data is not None:
        record["data"] = data
    try:
        text = orjson.dumps(record)
    except (TypeError, ValueError, RecursionError):
        text = b""
    if not text or len(text) > MOST_BYTES or b"\\u0000" in text:
        # A cut record would not be valid JSON, and one NUL would keep the progress of the whole
        # fleet out of the database.
        text = orjson.dumps({"fraction": fraction, "note": sanitize(note, 300)})
    return text
