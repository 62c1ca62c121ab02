"""The supervisor's standard error never blocks, even if its reader has stopped."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import socket
import tempfile
import termios

import pytest

from jobherd.supervisor.observe.log_stream import LogStream, _write_if_free
from jobherd.supervisor.observe.loop_lag import LoopLag
from jobherd.supervisor.process.signals import SignalPipe
from tests.support.patience import LIMIT

LINES = 2000


def line(number: int) -> str:
    return f"{number:99}\n"


def drink(fd: int, wanted: int, voice: LogStream) -> bytes:
    """Read `wanted` bytes from `fd` while the stream flushes."""
    said = b""
    while len(said) < wanted:
        voice.flush()
        assert select.select([fd], [], [], 60)[0], f"{len(said)} of {wanted}"
        said += os.read(fd, 65536)
    return said


@pytest.mark.parametrize("kind", ["pipe", "socket", "a pipe of another user"])
def test_stopped_reader_does_not_block_and_gets_all_kept_lines_later(kind, monkeypatch):
    monkeypatch.setattr("jobherd.supervisor.observe.log_stream.MOST", 16_384)
    if kind == "socket":
        one, other = socket.socketpair()
        reading, writing = one.detach(), other.detach()
    else:
        reading, writing = os.pipe()
    if kind == "a pipe of another user":
        monkeypatch.setattr(LogStream, "_sender", lambda _self, fd: lambda data: _write_if_free(fd, data))
    voice = LogStream(writing)
    for number in range(LINES):
        voice.write(line(number))
        voice.flush()
    assert voice.dropped
    assert voice.waits
    assert os.get_blocking(writing), "other processes write to this descriptor too"
    kept = LINES - voice.dropped
    assert drink(reading, kept * 100, voice).decode().splitlines(keepends=True) == [
        line(number) for number in range(kept)
    ]
    assert not voice.waits
    voice.write(line(7))
    assert drink(reading, 100, voice).decode() == line(7)
    voice.close()
    os.close(reading)
    os.close(writing)


def test_output_is_dropped_after_the_reader_has_closed():
    reading, writing = os.pipe()
    voice = LogStream(writing)
    os.close(reading)
    voice.write(line(1))
    voice.flush()
    assert (voice.dropped, voice.waits) == (1, False)
    voice.close()
    os.close(writing)


def test_file_is_written_at_the_offset_that_it_shares_with_other_writers():
    with tempfile.TemporaryFile() as file:
        os.write(file.fileno(), b"before\n")
        voice = LogStream(file.fileno())
        voice.write("said\n")
        voice.flush()
        os.write(file.fileno(), b"after\n")
        file.seek(0)
        assert file.read() == b"before\nsaid\nafter\n"


def test_background_process_can_write_to_a_terminal_with_tostop():
    """Under `stty tostop`, the kernel sends SIGTTOU at each write.

    A process that handles the signal and retries the write would do so indefinitely.
    """
    leader, terminal = pty.fork()
    if leader == 0:
        code = 70
        try:
            modes = termios.tcgetattr(1)
            modes[3] |= termios.TOSTOP
            termios.tcsetattr(1, termios.TCSANOW, modes)
            if background := os.fork():
                code = os.waitstatus_to_exitcode(os.waitpid(background, 0)[1])
            else:
                os.setpgid(0, 0)
                signal.alarm(int(LIMIT / 2))
                signals = SignalPipe()
                with signals.handled():
                    voice = LogStream(2)
                    voice.write("said\n")
                    voice.flush()
                    code = len(signals.read())  # SIGTTOU must not remove a worker either
        finally:
            os._exit(code)
    said = b""
    with contextlib.suppress(OSError):  # no process has the terminal open anymore
        while data := os.read(terminal, 1000):
            said += data
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1]) == 0
    assert said == b"said\r\n"


def test_late_turns_of_the_loop_are_counted_in_histogram_buckets():
    late = LoopLag()
    for seconds in (0.0001, 0.05, 0.0501, 7.0):
        late.note(seconds)
    assert late.facts() == {"0.001": 1, "0.005": 0, "0.02": 0, "0.05": 1, "0.2": 1, "1.0": 0, "+Inf": 1}
    assert str(late) == "the loop: 4 turns, 2 of them more than 50 ms late, the worst 7.0 s"
