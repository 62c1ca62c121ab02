"""What the gateway of a slot shows of its remote workers on the status board. A part of `status_board.py`."""

from __future__ import annotations

from typing import Final

from jobherd.workers.ipc.board_memory import Word
from jobherd.workers.ipc.board_texts import BoardTexts

SERVICES: Final = {"work": Word.STREAMS, "dispatch": Word.DISPATCHES}
"""The services with streams of remote workers, and their places."""


class BoardStreams(BoardTexts):
    """Streams of remote workers. `remote` has the counters."""

    # -- written by the gateway

    def say_streams(self, service: str, streams: int) -> None:
        """Called in the gateway: set the number of streams of a service."""
        self._words[SERVICES[service]] = streams

    def say_wanted(self, wanted: int) -> None:
        """Called in the gateway: set the number of jobs that remote workers wait for."""
        self._words[Word.WANTED] = wanted

    # -- read by any process

    @property
    def streams(self) -> dict[str, int]:
        """How many streams each service has."""
        return {service: int(self._words[place]) for service, place in SERVICES.items()}

    @property
    def wanted(self) -> int:
        """For how many jobs the workers on these streams wait."""
        return int(self._words[Word.WANTED])
