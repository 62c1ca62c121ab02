"""How the session at a gateway is, as a value."""

from __future__ import annotations

from typing import NamedTuple


class SessionNews(NamedTuple):
    """The session and its stream."""

    session: str = ""
    """Empty: there is none."""
    is_open: bool = False
    """Whether a stream is open."""
    until: float = 0.0
    """Monotonic time until which no other worker gets the tasks."""
    trouble: str = ""
    """Why no stream is open, for people."""
