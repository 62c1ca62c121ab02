"""The unused heap memory that a worker returns to the kernel before it is READY."""

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
    """Return the private memory of this process in bytes."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_\w+: +(\d+) kB", text, re.MULTILINE)) * 1024


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library keeps nothing back")
def test_free_memory_between_used_blocks_is_returned_to_the_kernel():
    """The test measures in a fork, so that other allocations of this process do not count."""
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
        heap.trim_heap()
        os._exit(0 if before - private() > PIECES * SIZE / 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_c_library_without_malloc_trim_causes_no_error(monkeypatch):
    monkeypatch.setattr(heap, "_trim", None)
    heap.trim_heap()


def test_worker_returns_unused_memory_once_before_it_is_ready(bench: Bench, monkeypatch):
    read, write = os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(heap, "_trim", lambda _pad: os.write(write, b"."))  # The worker is a fork of this process.
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
