"""Damage that a job may do to its process and to the files through which worker and supervisor communicate.

Neither of the two hangs, spins or dies.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess

import pytest

from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.pipes import Inbox, MoreWork
from jobherd.workers.process.process_state import ProcessState
from jobherd.workers.process.state_guard import CLEAN, SELDOM, StateGuard
from jobherd.workers.process.wakeup import Wake


@pytest.mark.parametrize(
    "nonsense", [b"S\xff\xff", b"P\xa1\x0f" + b"x" * 100, b"\0\0\0", b"Q\x01\x00?", bytes(range(256)) * 300]
)
def test_report_after_garbage_in_the_pipe_is_received(nonsense: bytes):
    inbox = Inbox()
    inbox.take(nonsense)
    assert any(isinstance(report, MoreWork) for _ in range(3) for report in inbox.take(b"M\0\0")), (
        "the inbox waits for the rest of the garbage"
    )


def test_control_block_cannot_be_resized_or_written_through_its_file_descriptor():
    control = ControlBlock()
    try:
        for harm in (
            lambda: os.ftruncate(control.fd, 0),
            lambda: os.pwrite(control.fd, b"x", 0),
            lambda: os.ftruncate(control.fd, 1 << 30),
        ):
            with pytest.raises(PermissionError):
                harm()
        control.bump()
        assert control.epoch == 1
    finally:
        os.close(control.fd)


def test_closed_wake_pipe_is_a_dismissal_and_an_endless_file_does_not_block_the_worker():
    read, write = os.pipe2(os.O_NONBLOCK)
    wake = Wake(read, parent=os.getppid())
    os.close(read)
    assert not wake.wait(60)
    assert wake.dismissed
    assert not wake.ended, "the supervisor is alive"
    zero = os.open("/dev/zero", os.O_RDONLY)
    assert Wake(zero, parent=os.getppid()).wait(60)
    os.close(zero)
    os.close(write)


def test_blocked_real_time_signals_are_named_in_the_reason_for_replacement(monkeypatch: pytest.MonkeyPatch):
    """Python has no names for most real-time signals. The check itself must not end the worker."""
    guard = StateGuard.__new__(StateGuard)
    guard.recycle_reason, guard._whole, guard._blocked = "", lambda: True, frozenset()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 1, signal.SIGUSR2})
    try:
        guard.look(0.0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert guard.recycle_reason == f"a job blocked signals: SIGUSR2, signal {signal.SIGRTMIN + 1}"


@pytest.mark.parametrize("also", [False, True], ids=["alone", "beside a variable that Python sees"])
def test_environment_of_programs_is_restored_to_its_state_before_the_job(monkeypatch: pytest.MonkeyPatch, also: bool):
    """A module or a C library may have set variables that programs see and Python does not.

    No job has set these variables, so they stay and do not count as a change.
    """

    def seen() -> dict[str, str]:
        lines = subprocess.run(["env"], capture_output=True, check=True, text=True).stdout.splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines) if name.startswith("SEEN_")}

    monkeypatch.setenv("SEEN_BY_ALL", "before")
    os.putenv("SEEN_BY_PROGRAMS", "before")
    os.putenv("SEEN_TOO", "before")
    try:
        process_state = ProcessState(())
        for _ in range(2):
            os.putenv("SEEN_OF_A_JOB", "yes")
            os.putenv("SEEN_BY_PROGRAMS", "after")
            if also:
                os.environ["SEEN_BY_ALL"] = "after"
            assert process_state.restore() == (True, "")
            assert seen() == {"SEEN_BY_ALL": "before", "SEEN_BY_PROGRAMS": "before", "SEEN_TOO": "before"}
            assert process_state.restore() == (False, "")
    finally:
        for name in ("SEEN_BY_PROGRAMS", "SEEN_TOO", "SEEN_OF_A_JOB"):
            os.unsetenv(name)


class _Found:
    """A process state that reports a change if `moved` is set, and counts the checks."""

    def __init__(self) -> None:
        self.moved = False
        self.looks = 0

    def restore_for_next_job(self) -> bool:
        self.looks += 1
        return self.moved

    def restore(self) -> tuple[bool, str]:
        self.looks += 1
        return self.moved, ""


class _Untouched:
    """Interrupts whose timer no job has changed."""

    @property
    def timer(self) -> _Untouched:
        return self

    def rearm_if_touched(self) -> bool:
        return True


def test_clean_kinds_are_checked_seldom_until_a_change_is_found():
    guard = StateGuard.__new__(StateGuard)
    found = guard._belongings = _Found()
    guard._interrupts, guard._whole, guard._blocked = _Untouched(), lambda: True, frozenset()
    guard.recycle_reason, guard.clean, guard.due, guard._ran, guard._found_nothing = "", set(), 0.0, True, {}
    for number in range(CLEAN):
        assert "a:b" not in guard.clean, f"after {number} checks"
        guard.restore("a:b", 1.0)
    assert guard.clean == {"a:b"}
    assert guard.due == 1.0 + SELDOM
    guard.look(1.0)
    assert found.looks == CLEAN + 1, "a job has run since the last full check"
    guard.look(1.0)
    assert found.looks == CLEAN + 1, "no job has run"
    guard.look(1.0 + SELDOM)
    assert found.looks == CLEAN + 2, "a full check is due"
    found.moved = True
    guard.restore("c:d", 2.0)
    assert not guard.clean, "a job of the other kind may have caused the change"
    found.moved = False
    for _ in range(CLEAN):
        guard.restore("a:b", 2.0)
    found.moved = True
    guard.look(2.0)
    assert not guard.clean
    assert not guard.recycle_reason


def test_new_processors_of_a_container_do_not_count_as_a_change_by_a_job(monkeypatch):
    """If none of the first processors was left, the worker died at each check.

    If fewer were left, every check found a change, so no kind became clean.
    """
    allowed, asked = {0, 1, 2, 3}, {0, 1, 2, 3}

    def ask(_, processors):
        if not set(processors) & allowed:
            raise OSError(errno.EINVAL, "Invalid argument")
        asked.clear()
        asked.update(processors)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: asked & allowed or set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", ask)
    process_state = ProcessState(())
    asked.discard(0)  # A job sets its own CPU affinity.
    assert process_state.restore() == (True, "")
    assert asked == {0, 1, 2, 3}
    for given in ({2, 3}, {8, 9}, {0, 1, 2, 3}):
        allowed = given
        assert process_state.restore()[1] == ""
        assert process_state.restore() == (False, "")
        assert os.sched_getaffinity(0) == given
