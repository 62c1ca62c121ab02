"""Named points: free where they are off, and each token taken by one process and done as it says."""

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


def test_nothing_happens_where_no_test_wants_it() -> None:
    assert not failpoints.armed
    assert failpoints.reach("anything") is None
    assert failpoints.reach.__code__.co_names == (), "a point that is off looks at nothing and calls nobody"


@pytest.mark.parametrize(("what", "code"), [("kill", -signal.SIGKILL), ("exit 3", 3), ("delay 0", 0)])
def test_a_token_is_taken_by_the_first_process_at_the_point_and_by_no_other(
    tmp_path: Path, what: str, code: int
) -> None:
    (tmp_path / "here@1").write_text(what)
    (tmp_path / "there@1").write_text("kill")
    one, other = process(tmp_path), process(tmp_path)
    assert let_go(one)[0] == code
    assert let_go(other)[:2] == (0, "through\n")
    assert {path.name for path in tmp_path.iterdir()} == {f"here@1:{one.pid}", "there@1"}


def test_a_failure_names_the_point(tmp_path: Path) -> None:
    (tmp_path / "here@1").write_text("raise")
    code, _, err = let_go(process(tmp_path))
    assert code == 1
    assert "PointError: here" in err


def test_a_word_that_is_none_is_refused_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "here@1").write_text("explode")
    assert "say kill, stop, exit CODE, raise, delay SECONDS or hold" in let_go(process(tmp_path))[2]


def test_who_is_held_goes_on_when_the_token_is_removed(tmp_path: Path) -> None:
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


def test_who_is_held_goes_on_though_the_token_is_removed_at_once(
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


def test_who_is_stopped_goes_on_when_it_is_continued(tmp_path: Path) -> None:
    (tmp_path / "here@1").write_text("stop")
    stopped = process(tmp_path)
    assert stopped.stdin is not None
    stopped.stdin.write("\n")
    stopped.stdin.flush()
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    stopped.send_signal(signal.SIGCONT)
    assert let_go(stopped)[:2] == (0, "through\n")


def test_what_is_reached_is_noted_once_while_somebody_watches(tmp_path: Path) -> None:
    (tmp_path / "seen").touch()
    watched = process(tmp_path)
    let_go(watched)
    assert (tmp_path / f"seen.{watched.pid}").read_text() == "here\n"
