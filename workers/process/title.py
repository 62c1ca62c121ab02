"""What a child process shows in its process title."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Title:
    """The process title, which is written only if it changes: writing it costs 20 us.

    write: writes it, with the name of the child process before it.
    shown: what it says now.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self.shown = ""
        self._write = write

    def show(self, doing: str) -> None:
        """Show what this process does."""
        if doing != self.shown:
            self.shown = doing
            self._write(doing)
