"""Takes fleet commands from the database, each once, and writes the answers to their rows.

Commands come from any host. A notification announces them, and each renewal of the lease checks as
well. Taking a command marks it, so none is carried out twice. If the session is lost in between,
the command is not carried out at all, and a maintenance process reports that to the waiting client.

A flood does no harm: each request takes a few commands, requests are spaced, and `jobherd.send_fleet_command`
rejects new commands once a hundred are open. Nothing here blocks. `events/commands.py` carries the
commands out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.supervisor.database.connection import Link

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.supervisor.database.interface import Connection
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot_table import SlotTable

MOST: Final = 8
"""Commands taken by one request, and carried out in one turn of the loop."""
SOONEST: Final = 0.05
"""Seconds between two requests for commands."""
AGAIN: Final = 0.5
"""Seconds before a lost request is repeated."""
LONGEST: Final = 1_000_000
"""Maximum characters of an answer; a longer one becomes an error."""


class CommandRejected(Exception):  # noqa: N818 - named after the event
    """A command cannot be carried out. The text has the reason, and what to do instead."""


@dataclass(frozen=True, slots=True)
class FleetCommand:
    """A command that was taken from the database."""

    id: int
    name: str
    arguments: Mapping[str, Any]
    asked_by: str


class FleetCommands:
    """Takes commands from the database and writes the answers. Its owner carries them out."""

    def __init__(self, db: Connection, slot_table: SlotTable) -> None:
        self._db = db
        self._slot_table = slot_table
        self._wanted = False
        self._asking = False
        self._at = 0.0
        self._taken: list[FleetCommand] = []
        self._answers: dict[int, tuple[str | None, str | None]] = {}
        """Answers whose write has not been confirmed."""
        self._sent: set[int] = set()
        self._answer_at = 0.0

    def notified(self, supervisor: str) -> None:
        """Take commands if the notification was for this supervisor."""
        if supervisor == str(self._slot_table.supervisor):
            self._wanted = True

    def query(self) -> None:
        """Take the fleet commands that are there for this supervisor."""
        self._wanted = True

    def taken(self) -> list[FleetCommand]:
        """Return the commands that were taken since the last call. Each must be answered."""
        taken, self._taken = self._taken, []
        return taken

    def wake_at(self, _now: float) -> float:
        """Return when `step` or `taken` must be called at the latest."""
        if self._taken:
            return 0.0
        if self._db.link is not Link.UP:
            return float("inf")
        due = self._answer_at if len(self._answers) > len(self._sent) else float("inf")
        return min(due, self._at) if self._wanted and not self._asking and self._slot_table.supervisor else due

    def step(self, now: float) -> None:
        """Send answers and take new commands, as far as each is due."""
        if self._db.link is not Link.UP:
            return
        if len(self._answers) > len(self._sent) and now >= self._answer_at:
            for number in self._answers.keys() - self._sent:
                self._send(number, now)
        if self._wanted and not self._asking and now >= self._at and self._slot_table.supervisor:
            self._wanted, self._asking, self._at = False, True, now + SOONEST
            wanted = {"supervisor": self._slot_table.supervisor, "most": MOST}
            self._db.ask("control/take_fleet_commands", wanted, lambda answer: self._took(answer, asked=now))

    def answer(self, number: int, answer: Mapping[str, Any] | None = None, *, error: str | None = None) -> None:
        """Write the result of a command. Only the first answer counts.

        Args:
            number: the id of the command.
            answer: the result, as JSON-compatible values.
            error: why the command was not carried out, instead of an answer.
        """
        text = "" if error is not None else as_json(answer or {})
        if len(text) > LONGEST:
            error = f"the answer has {len(text):,} characters, more than {LONGEST:,}"
        self._answers.setdefault(number, (text, None) if error is None else (None, error))

    # -- helpers

    def _took(self, answer: Answer, *, asked: float) -> None:
        self._asking = False
        if answer is None:
            self._wanted, self._at = True, asked + AGAIN
            return
        self._wanted = self._wanted or len(answer) >= MOST
        for number, name, arguments, asked_by in answer:
            document = _document(arguments)
            if document is None:
                self.answer(
                    int(number or 0), error="its arguments cannot be read: too deep, or a number that is too long"
                )
            else:
                self._taken.append(FleetCommand(int(number or 0), name or "", document, asked_by or ""))

    def _send(self, number: int, now: float) -> None:
        text, error = self._answers[number]
        self._sent.add(number)
        self._db.ask(
            "control/answer_fleet_command",
            {"order": number, "answer": text, "error": error},
            partial(self._answered, number, now),
            partial(self._unwritable, number),
        )

    def _answered(self, number: int, sent: float, answer: Answer) -> None:
        self._sent.discard(number)
        if answer is None:
            self._answer_at = sent + AGAIN
        else:
            self._answers.pop(number, None)

    def _unwritable(self, number: int) -> None:
        """Replace an answer that the server permanently rejects.

        Send a fixed text, then leave the command without an answer.
        """
        self._sent.discard(number)
        if self._answers.pop(number, (None, None))[0] is not None:
            self._answers[number] = (None, "the answer cannot be written down")


def as_json(document: object) -> str:
    """Return JSON that PostgreSQL accepts: no NUL, no lone surrogate, no NaN or infinity."""
    try:
        text = orjson.dumps(document).decode()  # NaN and infinity become null
    except TypeError:  # a lone surrogate, or a value that only the slow way can serialize
        text = ""
    if text and "\\u0000" not in text:
        return text
    return json.dumps(_writable(document), separators=(",", ":"), allow_nan=False)


def _writable(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
        case float():
            return value if value - value == 0 else None
        case dict():
            return {str(_writable(name)): _writable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_writable(inner) for inner in value]
        case _:
            return value


def _document(text: str | None) -> Mapping[str, Any] | None:
    """Return the arguments of a command, or None if Python cannot handle them.

    PostgreSQL can store JSON that Python cannot read, and an exception would cost the session.
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
        json.dumps(found)  # the log serializes them too
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else {}
