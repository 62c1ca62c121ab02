"""Parses the paths of `@handler(redact=...)`: parts of a document that are never shown.

Reads no document.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

MOST: Final = 100
"""Most paths of one kind. A kind with more should use `$.*`."""

_STEP: Final = re.compile(
    r"""(?P<dots>\.\.?)(?:(?P<name>[^\s.\[\]"'*]+)|(?P<all>\*))"""
    r"""|\[(?:(?P<place>\d{1,9})|(?P<each>\*)|"(?P<double>[^"\\]*)"|'(?P<single>[^'\\]*)')\]"""
)


class Step(NamedTuple):
    """One step of a path: to a name, to an index, to all, or to a name at any depth."""

    name: str | None = None
    place: int | None = None
    deep: bool = False

    def takes_name(self, name: str) -> bool:
        """Return whether the step matches the member with this name in an object."""
        return self.place is None and self.name in {None, name}

    def takes_place(self, place: int) -> bool:
        """Return whether the step matches this index in an array."""
        return self.name is None and self.place in {None, place}


def check_redact(value: object, *, field: str = "redact") -> tuple[str, ...]:
    """Return a handler's paths as a tuple. Raises TypeError or ValueError with the rule.

    >>> check_redact(["$.card", "$.items[*].code"])
    ('$.card', '$.items[*].code')
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        message = f'{field} must be a list of paths like ["$.card"], not {value!r:.80}'
        raise TypeError(message)
    if len(value) > MOST:
        message = f'{field} has {len(value)} paths, at most {MOST} are taken: "$.*" hides everything'
        raise ValueError(message)
    for each in value:
        steps_of(each)
    return tuple(dict.fromkeys(value))


@lru_cache(maxsize=1000)
def steps_of(path: str) -> tuple[Step, ...]:
    """Return the steps of a path. Raises ValueError with the rule.

    >>> steps_of("$.items[*].code") == (Step("items"), Step(), Step("code"))
    True
    """
    steps, at = [], 1
    while path[:1] == "$" and (match := _STEP.match(path, at)):
        name = match["name"] or match["double"] or match["single"]
        if match["double"] == "" or match["single"] == "":
            name = ""
        steps.append(Step(name, int(match["place"]) if match["place"] else None, match["dots"] == ".."))
        at = match.end()
    if not steps or at != len(path):
        message = (
            f"redact path {path!r:.80} is not one like '$.card', '$.items[*].code', '$..password' or '$[\"a name\"]'"
        )
        raise ValueError(message)
    return tuple(steps)
