"""What a child gives back to the kernel before it is READY."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobherd.workers.system import malloc as heap

if TYPE_CHECKING:
    from tests.support.seats import Bench

PIECES, SIZE = 20_000, 1024


def private() -> int:
    """Bytes that this process has for itself."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_\w+: +(\d+) kB", text, re.MULTILINE)) * 1024


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library keeps nothing back")
def test_what_lies_between_things_that_stay_is_given_back():
    """In a fork: what else happens in this process is not counted."""
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        pieces = [libc.malloc(SIZE) for _ in range(PIECES)]
        for piece in pieces:
            ctypes.memset(piece, 1, SIZE)
        for number, piece in enumerate(pieces[:-1]):
            if number % 100:
                libc.free(piece)
        before = private()
        heap.give_back()
        os._exit(0 if before - private() > PIECES * SIZE / 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_c_library_without_it_is_no_trouble(monkeypatch):
    monkeypatch.setattr(heap, "_trim", None)
    heap.give_back()


def test_a_worker_does_it_once_and_before_it_is_ready(bench: Bench, monkeypatch):
    read, write = os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(heap, "_trim", lambda _pad: os.write(write, b"."))  # the child is a fork of this process
    child = bench.start()
    assert os.read(read, 100) == b"."
    child.wait_idle()
    job = bench.enqueue("act:nothing")
    child.nudge()
    bench.wait(job, "completed")
    with pytest.raises(BlockingIOError):
        os.read(read, 100)
    os.close(read)
    os.close(write)
