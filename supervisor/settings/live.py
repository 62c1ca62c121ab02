"""Holds the settings in force: a reload replaces them, and the parts of the supervisor read them here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.settings.definitions import Settings


class LiveSettings:
    """The settings in force.

    Attributes:
        now: the settings.
    """

    def __init__(self, settings: Settings, reload: Callable[[], Settings] | None = None) -> None:
        self.now = settings
        self._reload = reload

    def reload(self) -> bool:
        """Read the settings again; return whether they can be read again at all.

        Raises:
            Exception: the settings do not load. The ones in force stay.
        """
        if self._reload is None:
            return False
        self.now = self._reload()
        return True
