"""Reads one job and prepares it for its page: redacted, and split into what the templates need.

Documents of handlers, producers and dead processes may contain anything. A document that cannot be
parsed is shown as text, and one of an unexpected shape without the missing part. The page of a bad
job must work. Must not send anything to a browser or change anything.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import datetime
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.inspect import explain as reasons
from jobherd.workers.page.redaction import redact, redact_text
from jobherd.workers.page.render import duration, size
from jobherd.workers.page.timeline import timeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.workers.page.database import Database, Row
    from jobherd.workers.page.redaction import Redactions
    from jobherd.workers.page.timeline import Timeline

OVER: Final = frozenset({"completed", "failed", "cancelled", "expired"})
IN_FULL: Final = 20
"""Attempts that are shown in full; earlier ones get a line each."""
SET_OFF: Final = 50
"""Child jobs that are listed."""
GENERATIONS: Final = 20
"""Ancestors that are listed."""
_MEMORY: Final = {
    "group": "control group", "limit": "may take", "peak": "took at most", "used": "takes", "oom_kills": "killed there so far:",
}  # fmt: skip
"""The labels of the memory values in a post-mortem."""
_SIZES: Final = frozenset({"limit", "peak", "used"})
LONG: Final = 4000
"""Characters from which on a document is collapsed."""
SHOWN: Final = 100_000
"""Characters of a document that the job's page shows; a longer one has its own page."""


@dataclass(frozen=True, slots=True)
class Document:
    """A formatted payload or result. name: the word for it in its address."""

    name: str
    text: str
    size: int
    """Size of the whole document, in bytes."""

    @property
    def is_long(self) -> bool:
        """Whether it is collapsed."""
        return len(self.text) > LONG

    @property
    def is_cut(self) -> bool:
        """Whether it is longer than the job's page shows."""
        return len(self.text) > SHOWN

    @property
    def shown(self) -> str:
        """The part that the job's page shows."""
        return self.text[:SHOWN]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt with its results."""

    number: object
    outcome: str
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ran_on: str | None = None
    code: str | None = None
    error: str | None = None
    sentence: str | None = None
    """The sentence of its post-mortem."""
    traceback: str | None = None
    stack: str | None = None
    """The stack of a process that died."""
    death: list[tuple[str, object]] = field(default_factory=list)
    """Further facts about its end, by name."""
    cpu: float | None = None
    rss: int | None = None
    output: str | None = None
    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ran(self) -> float | None:
        """Duration in seconds."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0.0, (self.finished_at - self.started_at).total_seconds())


@dataclass(frozen=True, slots=True)
class Head:
    """The live part of the page: state and reasons, progress, and the timeline."""

    job: Row
    now: list[Sentence]
    remedy: list[tuple[str, str]]
    """Commands and their purpose."""
    life: Timeline
    fraction: float | None
    note: str


Sentence = list["str | datetime"]
"""Text with timestamps, which the browser writes in the viewer's time zone."""


async def head_of(database: Database, hidden: Redactions, number: int) -> Head | None:
    """Return the live part of a job, or None if there is no such job. Raises as `Database.rows`."""
    row = await database.row("observe/explain_job", {"id": number, "most": reasons.MOST})
    if row is None:
        return None
    paths = (await hidden.read(database)).get(row["kind"], ())
    history = _history(row, paths)
    progress = _parsed(row["progress"])
    job = {
        **row,
        "history": history,
        "gates": _parsed(row["gates"]),
        "error": redact_text(row["error"], row["payload"], paths),
    }
    job["progress"] = progress if isinstance(progress, dict) else None
    told = reasons.explain(job, history, _mark)
    fraction, note = (job["progress"] or {}).get("fraction"), (job["progress"] or {}).get("note", "")
    return Head(
        job=job,
        now=[_sentence(each) for each in told.now],
        remedy=[
            (command.strip(), purpose.strip())
            for command, _, purpose in (each.partition("   ") for each in told.remedy)
        ],
        life=timeline(job, history, job["asked_at"]),
        fraction=float(fraction) if isinstance(fraction, int | float) else None,
        note=note if isinstance(note, str) else "",
    )


async def trail_of(database: Database, hidden: Redactions, number: int) -> dict[str, Any] | None:
    """Return a job's results and related jobs for its template; None if there is no such job.

    Raises as `Database.rows`.
    """
    given = {"id": number}
    # one query after the other: sessions are few, and shared with other viewers
    row = await database.row("observe/show_job", given)
    if row is None:
        return None
    logs = await database.rows("observe/show_logs", given)
    ancestors = await database.rows("page/list_ancestors", {**given, "most": GENERATIONS})
    set_off = await database.rows("page/list_child_jobs", {**given, "most": SET_OFF + 1})
    paths = (await hidden.read(database)).get(row["kind"], ())
    said = {log["token"]: log for log in logs}
    attempts = [_attempt(each, said.pop(each.get("token"), None)) for each in _history(row, paths)]
    attempts.reverse()
    return {
        "job": row,
        "result": document("result", redact(row["result"], paths)),
        "attempts": attempts[:IN_FULL],
        "earlier": attempts[IN_FULL:],
        "ancestors": ancestors,
        "set_off": set_off[:SET_OFF],
        "more_set_off": len(set_off) > SET_OFF,
    }


def document(name: str, text: str | None) -> Document | None:
    r"""Return a formatted document; None if there is none.

    A document that Python cannot hold stays unchanged.

    >>> document("payload", '{"order_id":7}').text
    '{\n  "order_id": 7\n}'
    """
    return None if text is None else Document(name, pretty(text), len(text.encode(errors="replace")))


def pretty(text: str) -> str:
    """Return indented JSON.

    A document that Python cannot hold is returned unchanged. Characters that no browser may be sent
    are written as JSON escapes.
    """
    try:
        shown = json.dumps(json.loads(text, parse_constant=_refuse, parse_float=_finite), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        shown = text
    return sendable(shown)


def sendable(text: str) -> str:
    """Return a text that can be encoded as UTF-8.

    A lone surrogate, which JSON can express, becomes its escape sequence.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(digits)
    return number


def _refuse(word: str) -> object:
    raise ValueError(word)


def _parsed(text: object) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _history(row: Mapping[str, Any], paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the attempts, with the redacted parts of the payload removed from their texts."""
    found = _parsed(row["history"])
    attempts = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    if not paths:
        return attempts
    for each in attempts:
        for name in ("error", "traceback"):
            if isinstance(each.get(name), str):
                each[name] = redact_text(each[name], row["payload"], paths)
        if isinstance(told := each.get("post_mortem"), dict):
            each["post_mortem"] = {
                name: redact_text(value, row["payload"], paths) if isinstance(value, str) else value
                for name, value in told.items()
            }
    return attempts


def _attempt(attempt: Mapping[str, Any], log: Mapping[str, Any] | None) -> Attempt:
    usage = attempt.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    told = attempt.get("post_mortem")
    told = dict(told) if isinstance(told, dict) else {}
    sentence, stack, tail = (_text(told.pop(name, None)) for name in ("sentence", "stack", "log_tail"))
    usage.setdefault("max_rss", told.pop("max_rss", None))
    # The post-mortem has the processor time of the whole process, which had run other jobs. It
    # belongs to the facts of the death, not to the attempt.
    spent = [told.pop(name, None) for name in ("cpu_user", "cpu_system")]
    if all(isinstance(one, int | float) for one in spent):
        told["processor time of the process"] = duration(sum(spent))
    cpu = [usage[name] for name in ("cpu_user", "cpu_system") if isinstance(usage.get(name), int | float)]
    entries = _parsed(log["entries"]) if log is not None else None
    output = _text(log["output"]) if log is not None else tail
    error, traceback = _text(attempt.get("error")), _text(attempt.get("traceback"))
    return Attempt(
        number=attempt.get("attempt", "?"),
        outcome=str(attempt.get("outcome", "?")),
        started_at=_moment(attempt.get("started_at")),
        finished_at=_moment(attempt.get("finished_at")),
        ran_on=_text(attempt.get("ran_on")),
        code=_text(attempt.get("error_code")),
        error=None if error == sentence else error,  # for a dead process the sentence is the error
        sentence=sentence,
        traceback=None if traceback == stack else traceback,  # the same for the stack
        stack=stack,
        death=list(starmap(_death, told.items())),
        cpu=sum(cpu) if cpu else None,
        rss=usage["max_rss"] if isinstance(usage.get("max_rss"), int) else None,
        output=output,
        entries=[each if isinstance(each, dict) else {"key": each} for each in entries]
        if isinstance(entries, list)
        else [],
    )


def _death(name: str, value: object) -> tuple[str, object]:
    """Return an entry of a post-mortem for people: durations and sizes have units."""
    if name.endswith("_age") and isinstance(value, int | float):
        value = duration(value)
    elif name == "memory" and isinstance(value, dict):
        known = [(key, value[key]) for key in _MEMORY if value.get(key) is not None]
        value = ", ".join(
            f"{_MEMORY[key]} {size(one) if key in _SIZES and isinstance(one, int | float) else one}"
            for key, one in known
        )
    if not (isinstance(value, str | int | float | bool) or value is None):
        value = json.dumps(value)
    return name.replace("_", " "), sendable(value) if isinstance(value, str) else value


def _text(value: object) -> str | None:
    return sendable(value) if isinstance(value, str) and value else None


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _mark(moment: datetime) -> str:
    """Return a marked timestamp, to find it again in a sentence.

    No text of the database contains a NUL.
    """
    return f"\0{moment.isoformat()}\0"


def _sentence(text: str) -> Sentence:
    parts = text.split("\0")
    found: Sentence = [_moment(part) or part if place % 2 else sendable(part) for place, part in enumerate(parts)]
    if isinstance(found[0], str):
        found[0] = found[0][:1].upper() + found[0][1:]
    if not text.endswith((".", "!", "?")):
        found.append(".")
    return found
