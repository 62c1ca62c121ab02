"""The metrics under attack.

Jobs go on, the child that answers neither grows nor dies, and answers as before once the attack is
over.
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
"""Bytes that the web child may grow by.

Half of what a single header of theirs would be for each who sends one.
"""


def web_of(fleet: Fleet) -> int:
    return int(fleet.wait_log(lambda event: event.get("message", "") == "web is ready")["pid"])


@contextlib.contextmanager
def taken_port() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder, holder.getsockname()[1]


def lives(address: str) -> bool:
    """Whether it says so.

    Who is slow to ask, and here all ask from one process, may be displaced by those who come after
    him, and asks again.
    """
    try:
        return fetch(address, "/livez")[0] == 200
    except OSError:
        return False


def test_jobs_go_on_under_a_flood_and_it_is_answered_at_once_when_it_is_over(stage: Stage):
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
            flood.wait(1)  # it has not ceased meanwhile
            stage.wait(lambda: lives(address), "who asks for its health to be heard among them")
            most = max(most, len(os.listdir(f"/proc/{web}/fd")))
            largest = max(largest, procfs.rss(web))
    assert most <= files + Limits().connections + 8, "with those that come and those that are just leaving"
    assert largest <= memory + GROWTH
    assert [fetch(address, path)[0] for path in ("/livez", "/readyz", "/metrics")] == [200] * 3
    stage.wait(lambda: len(os.listdir(f"/proc/{web}/fd")) <= files, "its files to be closed")
    assert (web_of(fleet), fleet.workers()) == (web, before)
    assert not fleet.said(lambda event: event.get("level") in ("error", "critical"))
    assert stage.run("SELECT DISTINCT attempts FROM jobherd.history") == [(1,)]
    assert fleet.stop() == 0


def test_a_port_that_is_taken_at_the_start_costs_no_job_and_is_listened_on_when_it_is_free(stage: Stage):
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
