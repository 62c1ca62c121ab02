"""The texts of a status board: the last lines of the log, the output of a job, stacks, and a crash's trace."""

from __future__ import annotations

import os

from jobherd.workers.ipc.board_memory import (
    AT_LOG,
    AT_STACKS,
    AT_TRACE,
    LOG,
    OUTPUT,
    PAGE,
    SEQUENCE,
    TRACE,
    BoardMemory,
    Word,
)
from jobherd.workers.ipc.memory_barrier import barrier


class BoardTexts(BoardMemory):
    """The regions of text. Their readers tolerate that a writer is at work."""

    # -- log

    def log(self, line: bytes) -> None:
        """Called in the child process: append to the ring of the last 64 KiB of log."""
        line = line[-LOG:]
        at = self._words[Word.LOGGED] % LOG
        first = min(len(line), LOG - at)
        self._view[AT_LOG + at : AT_LOG + at + first] = line[:first]
        self._view[AT_LOG : AT_LOG + len(line) - first] = line[first:]
        self._words[Word.LOGGED] += len(line)

    def log_tail(self, limit: int = 8192) -> bytes:
        """Return the latest `limit` bytes of the child process's log, from the beginning of a line."""
        written = int(self._words[Word.LOGGED])
        length = min(written, LOG, limit)
        start = (written - length) % LOG
        ring = bytes(self._view[AT_LOG : AT_LOG + LOG])
        tail = (ring + ring)[start : start + length]
        return tail if length == written else tail[tail.find(b"\n") + 1 :]

    # -- output of the handlers

    def take_output(self) -> bytes:
        """Called in the worker: return the output that the supervisor has read since the last call.

        Only the latest of it is available.
        """
        for _ in range(10_000):  # Not indefinitely: the supervisor may have died while it read.
            if not self._words[Word.DRAINING]:
                break
            os.sched_yield()  # The supervisor is reading at this moment.
        total, tail = self.drained()
        taken, self._words[Word.TAKEN] = int(self._words[Word.TAKEN]), total
        return tail[-(total - taken) :] if total > taken else b""

    def say_reading(self, *, reading: bool) -> None:
        """Called in the worker: it is about to read its own output, or has finished reading."""
        self._words[Word.READING] = reading
        barrier()

    def say_draining(self, *, draining: bool) -> bool:
        """Called in the supervisor: it is about to read a worker's output, or has published it.

        Return whether the worker is reading. Each side announces itself and then checks the other,
        so at least one of them sees the other, and the supervisor gives way. If both read at once,
        the output would be mixed up.
        """
        self._words[Word.DRAINING] = draining
        barrier()
        return bool(self._words[Word.READING])

    def publish_output(self, total: int, tail: bytes) -> None:
        """Called in the supervisor: publish the end of the worker's output.

        total: bytes read by now. tail: their end.
        """
        self._output.write(SEQUENCE.pack(total) + tail[-OUTPUT:])

    def watch(self, until: float) -> None:
        """Show that a user watches the output of this slot, until `until` in monotonic seconds.

        Until then the supervisor publishes even small amounts of output.
        """
        self._words[Word.WATCHED] = int(until * 1000)

    def drained(self) -> tuple[int, bytes]:
        """Return how many bytes of the worker's output the supervisor has read, and the end of them."""
        record = self._output.read() or bytes(8)
        return int(SEQUENCE.unpack_from(record)[0]), record[8:]

    @property
    def times_drained(self) -> int:
        """Grows each time the supervisor has read some output."""
        return self._output.newest()

    @property
    def watched(self) -> float:
        """Until when a user watches the output here, in monotonic seconds."""
        return self._words[Word.WATCHED] / 1000

    @property
    def output_taken(self) -> int:
        """How many bytes of the output belong to finished jobs."""
        return int(self._words[Word.TAKEN])

    # -- stacks and traces

    def open_trace(self) -> int:
        """Called in the child process at boot: clear the region for the stacks of a crash.

        Return a file descriptor that writes there.
        """
        if self._view[AT_TRACE]:  # An empty region is not touched, so it takes no memory.
            self._view[AT_TRACE : AT_TRACE + TRACE] = bytes(TRACE)
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(fd, AT_TRACE, os.SEEK_SET)
        return fd

    def open_stacks(self) -> None:
        """Called in the supervisor, before SIGUSR1.

        The next stacks start at the start of their region.

        The worker writes to the file descriptor that it inherited, so both processes share one
        position in the file. It is set here and read in `stacks`.
        """
        os.lseek(self.fd, AT_STACKS, os.SEEK_SET)

    def stacks(self) -> bytes:
        """Return what was written so far of the stacks that were requested last.

        Called in the supervisor, which shares the position in the file.
        """
        end = os.lseek(self.fd, 0, os.SEEK_CUR)
        return bytes(self._view[AT_STACKS:end])

    def trace(self) -> str:
        """Return the stacks of a crash, or an empty string."""
        found = b""
        # Stop at the end of the text: reading the rest would allocate its memory.
        for at in range(AT_TRACE, AT_STACKS, PAGE):
            found += bytes(self._view[at : at + PAGE])
            if found.endswith(b"\0"):
                break
        return found.rstrip(b"\0").decode(errors="replace")
