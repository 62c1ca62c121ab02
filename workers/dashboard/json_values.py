"""Reads values of a JSON document that another version or a broken process may have written.

A value of an unexpected type counts as missing and never raises.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def document(found: str | None) -> Mapping[str, Any]:
    """Return a JSON object from the database; anything else becomes an empty one."""
    try:
        value = json.loads(found) if found else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[dict[str, Any]]:
    """Return a list of objects; other elements are left out."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    """Return a text; anything else becomes an empty one."""
    return value if isinstance(value, str) else ""


def known(value: object, words: frozenset[str]) -> str:
    """Return one of these words; anything else becomes an empty text."""
    return value if isinstance(value, str) and value in words else ""


def number_of(value: object) -> float | int | None:
    """Return a finite number; anything else becomes None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0 else None
