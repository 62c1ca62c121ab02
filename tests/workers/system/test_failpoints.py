"""Failpoints: they cost nothing while they are off, and each token is taken and executed by one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobherd.workers.system import failpoints
from tests.support.herd import ROOT
from tests.support.patience import LIMIT

REACH = "import sys; from jobherd.workers.system.failpoints import reach; print('up', flush=True); sys.stdin.readline(); reach('here'); print('through', flush=True)"


def process(folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {failpoints.VARIABLE: str(folder), "PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(
        [sys.executable, "-c", REACH],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "up\n"
    return started


def let_go(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = started.communicate("\n", timeout=LIMIT)
    return started.returncode, out, err


def test_failpoint_that_is_off_does_nothing() -> None:
    assert not failpoints.armed
    assert failpoints.reach("anything") is None
    assert failpoints.reach.__code__.co_names == (), "a failpoint that is off must read and call nothing"


@pytest.mark.parametrize(("what", "code"), [("kill", -signal.SIGKILL), ("exit 3", 3), ("delay 0", 0)])
def test_token_is_taken_only_by_the_first_process_at_the_failpoint(tmp_path: Path, what: str, code: int) -> None:
    (tmp_path / "here@1").write_text(what)
    (tmp_path / "there@1").write_text("kill")
    one, other = process(tmp_path), process(tmp_path)
    assert let_go(one)[0] == code
    assert let_go(other)[:2] == (0, "through\n")
    assert {path.name for path in tmp_path.iterdir()} == {f"here@1:{one.pid}", "there@1"}


def test_raised_error_names_the_failpoint(tmp_path: Path) -> None:
    (tmp_path / "here@1").write_text("raise")
    code, _, err = let_go(process(tmp_path))
    assert code == 1
    assert "PointError: here" in err


def test_unknown_action_is_rejected_with_a_list_of_the_valid_ones(tmp_path: Path) -> None:
    (tmp_path / "here@1").write_text("explode")
    assert "say kill, stop, exit CODE, raise, delay SECONDS or hold" in let_go(process(tmp_path))[2]


def test_held_process_continues_when_its_token_is_removed(tmp_path: Path) -> None:
    (tmp_path / "here@1").write_text("hold")
    held = process(tmp_path)
    assert held.stdin is not None
    assert held.stdout is not None
    held.stdin.write("\n")
    held.stdin.flush()
    taken = tmp_path / f"here@1:{held.pid}"
    while not taken.exists():
        assert held.poll() is None
    taken.unlink()
    assert let_go(held)[:2] == (0, "through\n")


def test_held_process_continues_if_its_token_is_removed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here@1").write_text("hold")
    monkeypatch.setenv(failpoints.VARIABLE, str(tmp_path))
    real = Path.rename

    def rename(path: Path, target: Path) -> None:
        real(path, target).unlink()

    monkeypatch.setattr(Path, "rename", rename)
    failpoints._armed("here")
    assert list(tmp_path.iterdir()) == []


def test_stopped_process_continues_after_sigcont(tmp_path: Path) -> None:
    (tmp_path / "here@1").write_text("stop")
    stopped = process(tmp_path)
    assert stopped.stdin is not None
    stopped.stdin.write("\n")
    stopped.stdin.flush()
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    stopped.send_signal(signal.SIGCONT)
    assert let_go(stopped)[:2] == (0, "through\n")


def test_reached_failpoint_is_recorded_once_if_the_file_seen_exists(tmp_path: Path) -> None:
    (tmp_path / "seen").touch()
    watched = process(tmp_path)
    let_go(watched)
    assert (tmp_path / f"seen.{watched.pid}").read_text() == "here\n"
