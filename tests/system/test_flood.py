"""The metrics under a flood of connections.

Jobs continue. The web process neither grows nor dies, and answers as before when the flood has ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from jobherd.workers.system import procfs
from jobherd.workers.web.server import Limits
from tests.support.flood import Flood
from tests.system.test_metrics import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Fleet, Stage

GROWTH = 48 << 20
"""Bytes that the web process may grow by.

Half of what one header for each client that sends one would need.
"""


def web_of(fleet: Fleet) -> int:
    return int(fleet.wait_log(lambda event: event.get("message", "") == "web is ready")["pid"])


@contextlib.contextmanager
def taken_port() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder, holder.getsockname()[1]


def lives(address: str) -> bool:
    """Return whether `/livez` answers.

    A newer connection may replace this one, since all clients run in one slow process. The caller tries again.
    """
    try:
        return fetch(address, "/livez")[0] == 200
    except OSError:
        return False


def test_jobs_continue_during_a_flood_of_the_metrics_which_answer_when_it_has_ended(stage: Stage):
    fleet = stage.run_fleet(workers=2, http="127.0.0.1:0")
    address = fleet.wait_log("metrics and health on")["message"].split(" on ")[1]
    web, before = web_of(fleet), fleet.workers()
    assert fetch(address, "/metrics")[0] == 200
    files, memory = len(os.listdir(f"/proc/{web}/fd")), procfs.rss(web)
    most, largest = files, memory
    with Flood(int(address.rpartition(":")[2])) as flood:
        flood.wait(1)
        for _ in range(5):
            stage.wait_all([stage.enqueue("t:spin", '{"seconds": 0.002}') for _ in range(40)], "completed")
            flood.wait(1)  # the flood has not stopped meanwhile
            stage.wait(lambda: lives(address), "an answer to a health check during the flood")
            most = max(most, len(os.listdir(f"/proc/{web}/fd")))
            largest = max(largest, procfs.rss(web))
    assert most <= files + Limits().connections + 8, "includes connections that are being opened or closed"
    assert largest <= memory + GROWTH
    assert [fetch(address, path)[0] for path in ("/livez", "/readyz", "/metrics")] == [200] * 3
    stage.wait(lambda: len(os.listdir(f"/proc/{web}/fd")) <= files, "the files of the connections to be closed")
    assert (web_of(fleet), fleet.workers()) == (web, before)
    assert not fleet.said(lambda event: event.get("level") in ("error", "critical"))
    assert stage.run("SELECT DISTINCT attempts FROM jobherd.history") == [(1,)]
    assert fleet.stop() == 0


def test_taken_metrics_port_costs_no_job_and_is_used_when_it_is_free(stage: Stage):
    with taken_port() as (holder, port):
        fleet = stage.run_fleet(workers=1, http=f"127.0.0.1:{port}")
        fleet.wait_log(f"metrics and health are off: cannot listen on 127.0.0.1:{port}")
        web = web_of(fleet)
        stage.wait_all([stage.enqueue("t:noop") for _ in range(5)], "completed")
        holder.close()
        fleet.wait_log("metrics and health on")
        assert len(fleet.said("cannot listen")) == 1
        assert fetch(f"http://127.0.0.1:{port}", "/livez")[0] == 200
        assert web_of(fleet) == web
        assert fleet.stop() == 0
