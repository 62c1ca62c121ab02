"""A supervisor whose log nobody reads."""

from __future__ import annotations

import fcntl
import signal
import time
from typing import TYPE_CHECKING

from tests.system.test_metrics import fetch, scrape

if TYPE_CHECKING:
    from tests.support.fleet import Stage


def test_a_log_that_nobody_reads_holds_nobody_up_and_what_is_lost_is_counted(stage: Stage):
    fleet = stage.run_fleet(workers=1, http="127.0.0.1:0")
    address = fleet.wait_log("metrics and health on")["message"].split(" on ")[1]
    workers = fleet.workers()
    fleet.drain()
    fcntl.fcntl(fleet.fd, fcntl.F_SETPIPE_SZ, 4096)
    drain, fleet.drain = fleet.drain, lambda: None  # nobody reads from here on

    def lost() -> float:
        for _ in range(100):
            fleet.signal(signal.SIGUSR1)
            time.sleep(0.002)  # two at once are one
        return scrape(address)["jobherd_log_lines_dropped_total"][()]

    while not lost():
        # The parent is at work: it is what wakes the worker.
        stage.wait_state(stage.enqueue("t:noop"), "completed", limit=60)
        assert fetch(address, "/livez")[0] == 200
    fleet.drain = drain
    told = fleet.wait_log("log lines were dropped because standard error was not read", limit=60)
    assert int(told["message"].split()[0]) > 0
    assert fleet.workers() == workers, "the same worker"
    assert fleet.stop() == 0
