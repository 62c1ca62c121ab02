"""The state of a session at a gateway, as a value."""

from __future__ import annotations

from typing import NamedTuple


class SessionNews(NamedTuple):
    """State of the session and of its stream, sent when one of them changes."""

    session: str = ""
    """Empty: there is none."""
    is_open: bool = False
    """Whether a stream is open."""
    until: float = 0.0
    """Monotonic time until which no other worker gets the tasks."""
    trouble: str = ""
    """Why no stream is open, for people."""
