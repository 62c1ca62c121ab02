"""Waiting for processes by events: a pidfd becomes readable when its process ends. Nothing here sleeps or polls."""

from __future__ import annotations

import os
import select


def wait_for_exit(pid: int, timeout: float = 30.0) -> None:
    """Return when this process has ended (a zombie has), at once if there is none; TimeoutError names it otherwise."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        watch = select.poll()
        watch.register(fd, select.POLLIN)
        if not watch.poll(timeout * 1000):
            raise TimeoutError(f"process {pid} still runs after {timeout} s")
    finally:
        os.close(fd)


def is_running(pid: int) -> bool:
    """Whether this process runs now: neither gone nor a zombie."""
    try:
        wait_for_exit(pid, timeout=0)
    except TimeoutError:
        return True
    return False


def children_of(pid: int) -> list[int]:
    """The living children of a process with a single thread, oldest first."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [child for child in map(int, file.read().split()) if is_running(child)]
    except (FileNotFoundError, ProcessLookupError):
        return []
