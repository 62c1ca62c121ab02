"""Makes `docs/reference/log-events.md` from the calls of loggers in the code.

python -m tests.support.log_page
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.checkout import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "reference" / "log-events.md"
HEAD = """# Log events

<!-- Made by `python -m tests.support.log_page` from the code. Do not edit. -->

The messages of Jobherd's log, for searches and alerts. `…` stands for a value. ERROR means that something failed, WARNING that you may have to
act, INFO what happened. For formats and lines about jobs, see [Monitor](../how-to/operate/monitor.md#reading-the-log).

Every line in JSON has `at`, `level`, `process`, `logger` and `message`. The column "fields" lists what a message adds. A line that a handler
logs or prints also has `job`, `kind` and `attempt`.

A message can change in a minor release; the changelog names such changes. Lines that repeat the error of another program, and the lines of
the start, are not listed.
"""
PROCESSES = (
    ("Gateway", ("workers/gateway/",)),
    ("Maintenance process", ("workers/maintenance/",)),
    ("Dashboard and metrics", ("workers/web/", "workers/dashboard/")),
    ("Workers", ("workers/",)),
    ("Clients of the gateway", ("handlers/_remote/",)),
    ("Django, Sentry and other code of handlers", ("handlers/",)),
    ("Supervisor", ("supervisor/",)),
)
ORDER = ("Supervisor", "Workers", "Maintenance process", "Dashboard and metrics", "Gateway")
LEVELS = {"error": "ERROR", "exception": "ERROR", "critical": "ERROR", "warning": "WARNING", "info": "INFO"}
LISTS = {"warnings": "WARNING", "notes": "INFO"}
"""Lists of a fleet's state that the supervisor logs."""


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """A message of the log."""

    level: str
    text: str
    fields: tuple[str, ...] = ()


def render() -> str:
    """Return the page for the code of this checkout."""
    found: dict[str, set[Event]] = {}
    for package in ("supervisor", "workers", "handlers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            title = next(title for title, starts in PROCESSES if name.startswith(starts))
            found.setdefault(title, set()).update(events_of(path.read_text(encoding="utf-8")))
    parts = [HEAD]
    for title in (*ORDER, *sorted(set(found) - set(ORDER))):
        if found[title]:
            rows = [row(event) for event in sorted(found[title], key=by_level)]
            parts.append(f"## {title}\n\n| level | message | fields |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def by_level(event: Event) -> tuple[int, str, tuple[str, ...]]:
    """Return the key of the page's order: errors first."""
    return ("ERROR", "WARNING", "INFO").index(event.level), event.text, event.fields


def row(event: Event) -> str:
    """Return a row of a table."""
    text = re.sub(r"\s+", " ", event.text).strip().replace("`", "'").replace("|", r"\|")
    fields = ", ".join(f"`{name}`" for name in event.fields)
    return f"| {event.level} | `{text}` | {fields} |"


def events_of(text: str) -> Iterator[Event]:
    """Yield the messages that a module logs: calls such as `log.info("...")`, and appends to the lists in LISTS."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr=name, value=logger), args=[first, *_], keywords=words) if (
                name in LEVELS and "log" in ast.unparse(logger).lower()
            ):
                level = LEVELS[name]
            case ast.Call(func=ast.Attribute(attr="append", value=ast.Attribute(attr=name)), args=[first]) if (
                name in LISTS
            ):
                words, level = [], LISTS[name]
            case _:
                continue
        message = message_of(first)
        if re.search(r"[a-z]{3}", message):  # otherwise it repeats the message of another part
            yield Event(level, message, fields_of(words))


def message_of(node: ast.expr) -> str:
    """Return the message with `…` for each value, or "" if it is not a literal."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%[-+0-9.]*[sdrgf]", "…", text).replace("%%", "%")
        case ast.JoinedStr(values=values):
            return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in values)  # type: ignore[misc]
        case _:
            return ""


def fields_of(words: list[ast.keyword]) -> tuple[str, ...]:
    """Return the literal fields of `extra={...}`."""
    extra = next((word.value for word in words if word.arg == "extra"), None)
    if not isinstance(extra, ast.Dict):
        return ()
    return tuple(key.value for key in extra.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
