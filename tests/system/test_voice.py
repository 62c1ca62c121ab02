"""A supervisor whose log is not read."""

from __future__ import annotations

import fcntl
import signal
import time
from typing import TYPE_CHECKING

from tests.system.test_metrics import fetch, scrape

if TYPE_CHECKING:
    from tests.support.fleet import Stage


def test_unread_log_blocks_no_process_and_dropped_lines_are_counted(stage: Stage):
    fleet = stage.run_fleet(workers=1, http="127.0.0.1:0")
    address = fleet.wait_log("metrics and health on")["message"].split(" on ")[1]
    workers = fleet.workers()
    fleet.drain()
    fcntl.fcntl(fleet.fd, fcntl.F_SETPIPE_SZ, 4096)
    drain, fleet.drain = fleet.drain, lambda: None  # the log is not read from here on

    def lost() -> float:
        for _ in range(100):
            fleet.signal(signal.SIGUSR1)
            time.sleep(0.002)  # two signals at once count as one
        return scrape(address)["jobherd_log_lines_dropped_total"][()]

    while not lost():
        # The supervisor still works: it wakes the worker for this job.
        stage.wait_state(stage.enqueue("t:noop"), "completed", limit=60)
        assert fetch(address, "/livez")[0] == 200
    fleet.drain = drain
    told = fleet.wait_log("log lines were dropped because standard error was not read", limit=60)
    assert int(told["message"].split()[0]) > 0
    assert fleet.workers() == workers, "the same worker"
    assert fleet.stop() == 0
