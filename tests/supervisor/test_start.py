"""Errors when the kernel prevents a start."""

from __future__ import annotations

import errno
import os

import pytest

from jobherd.supervisor import start
from jobherd.supervisor.settings.definitions import Settings


def test_start_error_names_proc_only_if_it_is_not_mounted(monkeypatch):
    def without_proc(*_, **__):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/self/stat")

    monkeypatch.setattr(start, "Supervisor", without_proc)
    with pytest.raises(start.RefusedError, match="limits its open files"):
        start.run(Settings(), "host=/nowhere")
    monkeypatch.setattr(start.os.path, "exists", lambda path: not path.startswith("/proc"))
    with pytest.raises(start.RefusedError, match=r"^/proc is not mounted"):
        start.run(Settings(), "host=/nowhere")
