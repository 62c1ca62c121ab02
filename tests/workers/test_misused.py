"""What a job may have done to the files by which child and parent speak: neither hangs, spins nor dies of it."""

from __future__ import annotations

import os
import signal

import pytest

from workers.link import Inbox, More
from workers.notice import Notice
from workers.tidiness import Tidiness
from workers.wake import Wake


@pytest.mark.parametrize("nonsense", [b"S\xff\xff", b"P\xa1\x0f" + b"x" * 100, b"\0\0\0", b"Q\x01\x00?", bytes(range(256)) * 300])
def test_what_is_said_after_nonsense_is_heard(nonsense: bytes):
    inbox = Inbox()
    inbox.take(nonsense)
    assert any(isinstance(report, More) for _ in range(3) for report in inbox.take(b"M\0\0")), "it waits for the rest of the nonsense"


def test_nobody_cuts_off_or_writes_what_the_parent_says_to_all():
    notice = Notice()
    try:
        for harm in (lambda: os.ftruncate(notice.fd, 0), lambda: os.pwrite(notice.fd, b"x", 0), lambda: os.ftruncate(notice.fd, 1 << 30)):
            with pytest.raises(PermissionError):
                harm()
        notice.bump()
        assert notice.epoch == 1
    finally:
        os.close(notice.fd)


def test_a_closed_wake_pipe_is_a_dismissal_and_one_without_an_end_does_not_hold():
    read, write = os.pipe2(os.O_NONBLOCK)
    wake = Wake(read, parent=os.getppid())
    os.close(read)
    assert not wake.wait(60)
    assert wake.dismissed
    assert not wake.ended, "its parent lives"
    zero = os.open("/dev/zero", os.O_RDONLY)
    assert Wake(zero, parent=os.getppid()).wait(60)
    os.close(zero)
    os.close(write)


def test_every_signal_that_can_be_blocked_has_a_name_in_the_log(monkeypatch: pytest.MonkeyPatch):
    """Python has no names for most of those for real-time use: the look itself must not end the child."""
    tidy = Tidiness.__new__(Tidiness)
    tidy.worn, tidy._whole = "", lambda: True
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 1, signal.SIGUSR2})
    try:
        tidy.look()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert tidy.worn == f"a job blocked signals: SIGUSR2, signal {signal.SIGRTMIN + 1}"
