"""Reads the attempts of one job from its history: outcome, error, post-mortem, usage and log.

An attempt of an unexpected shape is shown without the missing part. Must not query the database.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.dashboard.documents import parsed, sendable
from jobherd.workers.dashboard.redaction import redact_text
from jobherd.workers.dashboard.render import duration, size
from jobherd.workers.inspect.phrases import moment_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

_MEMORY: Final = {
    "group": "control group",
    "limit": "may take",
    "peak": "took at most",
    "used": "takes",
    "oom_kills": "killed there so far:",
}
"""The labels of the memory values in a post-mortem."""
_FINAL: Final = frozenset({"ok", "failed", "poison", "cancelled", "expired"})
"""Outcomes after which only a user begins another attempt."""
_SIZES: Final = frozenset({"limit", "peak", "used"})


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
    tail: str | None = None
    """The last lines that its process logged before it died."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    run: int = 1
    """The first run of the job, or a later one that a user has begun: each counts its attempts from 1."""

    @property
    def ran(self) -> float | None:
        """Duration in seconds."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0.0, (self.finished_at - self.started_at).total_seconds())


def numbered(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts with the numbers of their runs. attempts: the oldest first.

    >>> [one.run for one in numbered([Attempt(1, "retry"), Attempt(2, "failed"), Attempt(1, "ok")])]
    [1, 1, 2]
    """
    found: list[Attempt] = []
    run, before = 1, None
    for one in attempts:
        if before is not None and before.outcome in _FINAL and _counted(one) <= _counted(before):
            run += 1
        found.append(replace(one, run=run))
        before = one
    return found


def _counted(attempt: Attempt) -> int:
    return attempt.number if isinstance(attempt.number, int) else 0


def history_of(row: Mapping[str, Any], paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the attempts, with the redacted parts of the payload removed from their texts."""
    found = parsed(row["history"])
    attempts = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    if not paths:
        return attempts
    for each in attempts:
        for name in ("error", "traceback"):
            if isinstance(each.get(name), str):
                each[name] = redact_text(each[name], row["payload"], paths)
        if isinstance(post_mortem := each.get("post_mortem"), dict):
            each["post_mortem"] = {
                name: redact_text(value, row["payload"], paths) if isinstance(value, str) else value
                for name, value in post_mortem.items()
            }
    return attempts


def attempt_of(attempt: Mapping[str, Any], log: Mapping[str, Any] | None) -> Attempt:
    """Return one entry of the history, with its stored log."""
    usage = attempt.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    post_mortem = attempt.get("post_mortem")
    post_mortem = dict(post_mortem) if isinstance(post_mortem, dict) else {}
    sentence, stack, tail = (_text(post_mortem.pop(name, None)) for name in ("sentence", "stack", "log_tail"))
    usage.setdefault("max_rss", post_mortem.pop("max_rss", None))
    # The post-mortem has the processor time of the whole process, which had run other jobs. It
    # belongs to the facts of the death, not to the attempt.
    spent = [post_mortem.pop(name, None) for name in ("cpu_user", "cpu_system")]
    if all(isinstance(one, int | float) for one in spent):
        post_mortem["processor time of the process"] = duration(sum(spent))
    cpu = [usage[name] for name in ("cpu_user", "cpu_system") if isinstance(usage.get(name), int | float)]
    entries = parsed(log["entries"]) if log is not None else None
    error, traceback = _text(attempt.get("error")), _text(attempt.get("traceback"))
    return Attempt(
        number=attempt.get("attempt", "?"),
        outcome=str(attempt.get("outcome", "?")),
        started_at=moment_or_none(attempt.get("started_at")),
        finished_at=moment_or_none(attempt.get("finished_at")),
        ran_on=_text(attempt.get("ran_on")),
        code=_text(attempt.get("error_code")),
        error=None if error == sentence else error,  # for a dead process the sentence is the error
        sentence=sentence,
        traceback=None if traceback == stack else traceback,  # the same for the stack
        stack=stack,
        death=list(starmap(_death, post_mortem.items())),
        cpu=sum(cpu) if cpu else None,
        rss=usage["max_rss"] if isinstance(usage.get("max_rss"), int) else None,
        output=_text(log["output"]) if log is not None else None,
        tail=tail if log is None else None,
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
