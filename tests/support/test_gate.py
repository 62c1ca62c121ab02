from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.gate import VARIABLE, Gate, at_gate
from tests.support.patience import LIMIT
from tests.support.processes import wait_for_exit

HANDLER = (
    "import sys; from tests.support.gate import at_gate; sys.exit(0 if at_gate(sys.argv[1]) == sys.argv[2] else 3)"
)


def handler(label: str, word: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", HANDLER, label, word])


def test_handler_in_another_process_waits_until_the_test_opens_the_gate(gate: Gate):
    with handler("a", "go on") as child:
        arrival = gate.wait_arrival()
        assert (arrival.label, arrival.pid) == ("a", child.pid)
        assert child.poll() is None
        arrival.open("go on")
        assert child.wait(LIMIT) == 0


def test_arrivals_are_returned_by_label_and_others_stay_for_later(gate: Gate):
    with handler("a", "") as first, handler("b", "") as second:
        b = gate.wait_arrival("b")
        a = gate.wait_arrival("a")
        assert (a.pid, b.pid) == (first.pid, second.pid)
        a.open()
        b.open()


def test_wait_gone_returns_after_the_handler_was_killed(gate: Gate):
    with handler("a", "") as child:
        arrival = gate.wait_arrival()
        os.kill(child.pid, signal.SIGKILL)
        arrival.wait_gone()
        wait_for_exit(child.pid)


def test_wait_arrival_times_out_and_names_the_missing_label(gate: Gate):
    with handler("a", "") as child:
        gate.wait_arrival("a").open()
        assert child.wait(LIMIT) == 0
    with pytest.raises(TimeoutError, match="'b'"):
        gate.wait_arrival("b", timeout=0.05)


def test_wait_gone_times_out_while_the_handler_waits(gate: Gate):
    with handler("a", "") as child:
        arrival = gate.wait_arrival()
        with pytest.raises(TimeoutError, match="still waits"):
            arrival.wait_gone(timeout=0.05)
        child.kill()


def test_closing_the_gate_raises_connection_error_in_waiting_handlers(monkeypatch: pytest.MonkeyPatch):
    caught: list[BaseException] = []

    def pass_the_gate() -> None:
        try:
            at_gate("a")
        except ConnectionError as error:
            caught.append(error)

    with Gate() as gate:
        monkeypatch.setenv(VARIABLE, str(gate.path))
        thread = threading.Thread(target=pass_the_gate)
        thread.start()
        gate.wait_arrival("a")
    thread.join(LIMIT)
    assert len(caught) == 1
