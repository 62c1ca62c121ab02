"""A value that does not fit its annotation, and the path to it."""

from __future__ import annotations

import json
import re
from typing import Final

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")


class Misfit(Exception):  # noqa: N818  # not an error: it never leaves the package
    """A value does not fit its annotation. `steps` is the path to it, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


def path_step(key: object) -> str:
    """Return a key as a step of a path.

    It is cut and escaped: keys are untrusted, and paths are logged.
    """
    text = str(key)[:80]
    return f".{text}" if _PLAIN_KEY.fullmatch(text) else f"[{json.dumps(text)}]"


def mismatch(expected: str, value: object) -> Misfit:
    """Return the Misfit of a value of the wrong JSON type.

    >>> str(mismatch("int", None))
    'must be int, not null'
    """
    names = {type(None): "null", dict: "an object", list: "an array"}
    return Misfit(f"must be {expected}, not {names.get(type(value), type(value).__name__)}")
