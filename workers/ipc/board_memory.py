"""The memory of a status board: its regions, and how they are opened.

Each region has one writer. Stacks come last, and the memory cannot grow: signal handlers write them,
of any length, and they must not overwrite anything else.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final

from jobherd.workers.ipc.counters import Tally
from jobherd.workers.ipc.double_buffer import DoubleBuffer
from jobherd.workers.ipc.gateway_counts import GatewayCounts
from jobherd.workers.ipc.outcome_buffer import OutcomeBuffer

NOW = struct.Struct("<BqqqHhhhdd")
INTERRUPTION = struct.Struct("<Bqq")
COMPANY = struct.Struct("<qq")
MATE = struct.Struct("<qhhh")
SEQUENCE = struct.Struct("<Q")

WORDS: Final = 32
LOG: Final = 64 * 1024
TRACE: Final = 128 * 1024
STACKS: Final = 256 * 1024
PAGE: Final = 4096
PROGRESS: Final = 2048
OUTPUT: Final = 64 * 1024
"""Maximum bytes kept of the output of one attempt."""

AT_WORDS: Final = 0
AT_NOW: Final = AT_WORDS + 8 * WORDS
AT_INTERRUPTION: Final = AT_NOW + DoubleBuffer.size(128)
AT_PROGRESS: Final = AT_INTERRUPTION + DoubleBuffer.size(64)
AT_TALLY: Final = (AT_PROGRESS + DoubleBuffer.size(PROGRESS) + 7) // 8 * 8
AT_LOG: Final = AT_TALLY + Tally.SIZE
AT_LEDGER: Final = (AT_LOG + LOG + 7) // 8 * 8
AT_COMPANY: Final = AT_LEDGER + OutcomeBuffer.SIZE
MATES: Final = COMPANY.size + 500 * MATE.size
AT_OUTPUT: Final = (AT_COMPANY + DoubleBuffer.size(MATES) + 7) // 8 * 8
AT_REMOTE: Final = (AT_OUTPUT + DoubleBuffer.size(8 + OUTPUT) + 7) // 8 * 8
AT_TRACE: Final = (AT_REMOTE + GatewayCounts.SIZE + PAGE - 1) // PAGE * PAGE
AT_STACKS: Final = AT_TRACE + TRACE
SIZE: Final = AT_STACKS + STACKS


class Word:
    """The places of the single words of a board. Writing one is a store.

    Cost: plain integers, because an enumeration is slower to read, and some are written for each job.
    """

    IDLE: Final = 0
    STARTED: Final = 1
    CLAIMS: Final = 2
    EMPTY: Final = 3
    LOGGED: Final = 4
    DATABASE: Final = 5
    DISMISSED: Final = 6
    HELD: Final = 7
    REVOKED: Final = 8
    IDLED: Final = 9
    BEGUN: Final = 10
    TAKEN: Final = 11
    DRAINING: Final = 12
    READING: Final = 13
    WATCHED: Final = 14
    UNWRITTEN: Final = 15
    FLUSHED: Final = 16
    HOOK: Final = 17
    CLAIM: Final = 18
    STREAMS: Final = 19
    DISPATCHES: Final = 20
    WANTED: Final = 21
    SHORT: Final = 22
    """The running short job, as `OutcomeBuffer.list_jobs` says. 0: another record says what runs."""


class BoardMemory:
    """Memory that a child process writes and its supervisor reads, and that survives it.

    words: the single words, by `Word`. For a loop in which a call would cost more than the access.
    tally: the counters. outcomes: the outcomes of the worker's claims. remote: those of a gateway.
    """

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, SIZE)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        self._open()

    def _open(self) -> None:
        self._memory = mmap.mmap(self.fd, SIZE)
        self._view = memoryview(self._memory)
        self.words = self._words = self._view[: 8 * WORDS].cast("Q")
        self._now = DoubleBuffer(self._view, AT_NOW, 128)
        self._interruption = DoubleBuffer(self._view, AT_INTERRUPTION, 64)
        self._progress = DoubleBuffer(self._view, AT_PROGRESS, PROGRESS)
        self._company = DoubleBuffer(self._view, AT_COMPANY, MATES)
        self._output = DoubleBuffer(self._view, AT_OUTPUT, 8 + OUTPUT)
        self.tally = Tally(self._view, AT_TALLY)
        self.outcomes = OutcomeBuffer(self._view, AT_LEDGER)
        self.remote = GatewayCounts(self._view, AT_REMOTE)

    def close(self) -> None:
        """Release the memory. Other processes keep it."""
        self.tally.close()
        self.outcomes.release()
        self.remote.close()
        self._words.release()
        self._view.release()
        self._memory.close()
        os.close(self.fd)
