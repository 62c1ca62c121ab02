"""A value that does not fit its annotation, and the path that leads to it."""

from __future__ import annotations

import json
import re
from typing import Final

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")


class Misfit(Exception):  # noqa: N818  # never leaves the package
    """A value does not fit. `steps` leads to it, the innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


def path_step(key: object) -> str:
    """Return how a key continues a path. It is cut and escaped: a key comes from outside, and the path goes to logs."""
    text = str(key)[:80]
    return f".{text}" if _PLAIN_KEY.fullmatch(text) else f"[{json.dumps(text)}]"
