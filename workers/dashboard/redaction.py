"""Hides the parts of payloads, results and errors that a kind declares with `redact`.

A path is `$` and steps: `.name`, `["any name"]`, `[3]`, `[*]` and `.*` for all, `..name` for a name
at any depth. Every match is replaced by `HIDDEN`, whatever its type. A document that cannot be
parsed is hidden completely: too much rather than a card number. Code that searches payloads for
text must leave these kinds out, and kinds that no worker has declared: the matches alone would
reveal the hidden value digit by digit.
Pure, except `Redactions`.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from jobherd.handlers._policy.redact import Step, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobherd.workers.dashboard.database import Database, Reading

HIDDEN: Final = "«redacted»"
"""The replacement of a hidden value."""
KEPT: Final = 10.0
"""Seconds for which the kinds' paths are cached.

For that long after a deployment with a new path the old paths are used.
"""


def redact(document: str | None, paths: Sequence[str]) -> str | None:
    """Return a JSON document, as text, without the matches of these paths.

    document: as the database returns it; None stays None.
    paths: as for `@handler(redact=...)`.
    Raises nothing: if the document or a path is invalid, the whole document is hidden.

    >>> redact('{"card": "4111", "items": [{"sku": 1, "code": "x"}]}', ["$.card", "$.items[*].code"])
    '{"card": "«redacted»", "items": [{"sku": 1, "code": "«redacted»"}]}'
    """
    if document is None or not paths:
        return document
    try:
        value = json.loads(document)
        for path in paths:
            value = _without(value, steps_of(path))
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return json.dumps(HIDDEN, ensure_ascii=False)


def restore(value: Any, document: str, paths: Sequence[str]) -> Any:
    """Return an edited document with its hidden values restored.

    value: the edited document. document: the original, as JSON. paths: those that hid it.
    Raises ValueError if `HIDDEN` is at a position where nothing was hidden, or whose value is no
    longer known: it would be stored as a value.

    >>> restore({"card": HIDDEN, "to": "ann"}, '{"card": "4111", "to": "bob"}', ["$.card"])
    {'card': '4111', 'to': 'ann'}
    """
    if not paths:
        return value
    shown = redact(document, paths)
    return _restore(value, json.loads(document), json.loads(shown or "null"), "$")


def redact_text(text: str | None, document: str | None, paths: Sequence[str]) -> str | None:
    """Return a text, such as an error, without the hidden values of a document that it may quote.

    text: None stays None.
    document: the job's payload as JSON. Values shorter than four characters are left: replacing
        them would damage unrelated text.

    >>> redact_text("ValueError: card 4111222233334444 is not valid", '{"card": "4111222233334444"}', ["$.card"])
    'ValueError: card «redacted» is not valid'
    """
    if not text or not paths or document is None:
        return text
    try:
        value = json.loads(document)
        found = {word for path in paths for one in _found(value, steps_of(path)) for word in _words(one)}
    except (ValueError, TypeError, RecursionError):
        return HIDDEN
    for word in sorted(found, key=len, reverse=True):
        text = text.replace(word, HIDDEN)
    return text


class Redactions:
    """Cache the paths that the kinds declare, for `KEPT` seconds.

    One an application; `request.app.state.redactions` holds it.
    """

    def __init__(self) -> None:
        self._paths: dict[str, tuple[str, ...]] = {}
        self._until = -float("inf")

    async def read(self, database: Database | Reading) -> dict[str, tuple[str, ...]]:
        """Return the paths of every kind that has any. Raises as `Database.rows`.

        >>> hidden = await request.app.state.redactions.read(database(request))  # doctest: +SKIP
        >>> redact(row["payload"], hidden.get(row["kind"], ()))  # doctest: +SKIP
        """
        if time.monotonic() >= self._until:
            self._paths = {
                str(row["name"]): tuple(json.loads(row["redact"]))
                for row in await database.rows("dashboard/list_redactions")
            }
            self._until = time.monotonic() + KEPT
        return self._paths


def _restore(value: Any, original: Any, shown: Any, path: str) -> Any:
    if value == HIDDEN:
        if shown != HIDDEN:
            message = f"{HIDDEN} at {path} does not replace a hidden value: write the value itself"
            raise ValueError(message)
        return original
    match value:
        case dict():
            known, seen = (each if isinstance(each, dict) else {} for each in (original, shown))
            return {
                name: _restore(inner, known.get(name), seen.get(name), f"{path}.{name}")
                for name, inner in value.items()
            }
        case list():
            old, told = (each if isinstance(each, list) else [] for each in (original, shown))
            return [
                _restore(
                    inner, old[at] if at < len(old) else None, told[at] if at < len(told) else None, f"{path}[{at}]"
                )
                for at, inner in enumerate(value)
            ]
    return value


_KNOWN: WeakKeyDictionary[Database, Redactions] = WeakKeyDictionary()


async def paths_of(database: Database) -> dict[str, tuple[str, ...]]:
    """Return the paths of every kind that has any, for code without the application.

    Raises as `Database.rows`.
    """
    return await _KNOWN.setdefault(database, Redactions()).read(database)


def _without(value: Any, steps: Sequence[Step]) -> Any:
    if not steps:
        return HIDDEN
    step, rest = steps[0], steps[1:]
    match value:
        case dict():
            changed = {name: _without(inner, rest) if step.takes_name(name) else inner for name, inner in value.items()}
            return {name: _without(inner, steps) for name, inner in changed.items()} if step.deep else changed
        case list():
            changed_list = [
                _without(inner, rest) if step.takes_place(place) else inner for place, inner in enumerate(value)
            ]
            return [_without(inner, steps) for inner in changed_list] if step.deep else changed_list
    return value


def _found(value: Any, steps: Sequence[Step]) -> Iterable[Any]:
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        if step.takes_name(key) if isinstance(key, str) else step.takes_place(key):
            yield from _found(one, rest)
        if step.deep:
            yield from _found(one, steps)


def _words(value: Any) -> Iterable[str]:
    """Return the forms of a value in a text: plain, as Python writes it, and as JSON does."""
    match value:
        case dict():
            for inner in value.values():
                yield from _words(inner)
        case list():
            for inner in value:
                yield from _words(inner)
        case str() | int() | float() if not isinstance(value, bool):
            for form in (
                str(value),
                repr(value)[1:-1] if isinstance(value, str) else repr(value),
                json.dumps(value).strip('"'),
            ):
                if len(form) >= 4:
                    yield form
