"""The web process: serves metrics and health over HTTP, and the dashboard with the extra `web`.

Metrics and health come from the status boards and need only the core packages. `server.py` serves
connections, with `http_message.py` for their bytes; neither knows jobs. `health.py` judges health.
`metrics.py` collects the metrics of the `*_metrics.py` modules and `exposition.py` renders them.
`queue_depth.py` decides when the database is queried for the depth of the queues,
`queue_counts.py` queries it. `status_report.py` reads what the supervisor publishes, and
`page_handoff.py` hands connections over to the dashboard (`workers/dashboard/`).

This process claims, changes and stops nothing, and never waits for another child process: a scrape
reads shared memory. Metrics and health never show a payload, a DSN or a process ID.

If the port is in use, metrics are missing but no job is affected: the supervisor logs it once, and
this process tries to bind again. The multiprocess mode of prometheus-client is not used: it keeps
the gauges of a dead process indefinitely, and one file for each process that ever ran.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Final

from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import Problem, Ready, send
from jobherd.workers.web.cpu_budget import CpuBudget
from jobherd.workers.web.exposition import Exposition
from jobherd.workers.web.health import pages
from jobherd.workers.web.metrics import JobherdCollector
from jobherd.workers.web.page_handoff import Hosting, make_page, why_off
from jobherd.workers.web.queue_depth import Measurer
from jobherd.workers.web.server import Server, bind, names_of
from jobherd.workers.web.status_report import StatusReader

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from jobherd.workers.process.spec import ChildSpec

__all__ = ["run"]

log = logging.getLogger("jobherd")

RETRY_FIRST: Final = 1.0
RETRY_MOST: Final = 30.0
"""Seconds between two attempts to bind the port: from `RETRY_FIRST`, doubled up to this."""
ENDING: Final = 1.0
"""Seconds that the exit waits for queries that it has canceled."""


def run(spec: ChildSpec, *, title: Callable[[str], object] = lambda _doing: None) -> None:
    """Serve HTTP on `spec.settings.http` until the wake pipe is closed.

    A port in use and an unreachable database raise nothing. The function needs no main thread. It
    starts no threads except those that resolve host names, and does not wait for them.

    Args:
        spec: what this process was started with.
        title: called with a few words on what this process does, for the process list; default:
            does nothing.
    """
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_live(spec, title))
    finally:
        loop.run_until_complete(_end_tasks())
        loop.close()


async def _end_tasks() -> None:
    """Cancel what still runs in the background: queries that no page waits for any more, bulk actions.

    Otherwise their sessions would stay in a query, and Python would log that it destroyed a running task.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        if not task.cancelling():  # a second cancel would interrupt the request that cancels the query on the server
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=ENDING)


async def _live(spec: ChildSpec, title: Callable[[str], object]) -> None:
    """Serve until dismissed.

    A defect in the server ends the process; the supervisor replaces it.
    """
    loop = asyncio.get_running_loop()
    measurer = Measurer(
        spec.settings.dsn,
        spec.settings.schema,
        tenants=spec.settings.metrics_tenants,
        on_session=lambda up: spec.board.set_database(connected=up),
    )
    dismissed = loop.create_future()

    def read_wake() -> None:
        try:
            word = os.read(spec.wake, 65536)
        except BlockingIOError:
            return
        if word:
            measurer.hurry()  # a wake byte means that something has changed: perhaps the database is back
        elif not dismissed.done():
            loop.remove_reader(spec.wake)  # a closed pipe is always readable: the loop would spin on it
            dismissed.set_result(None)

    loop.add_reader(spec.wake, read_wake)
    serving = loop.create_task(_serve(spec, measurer, title))
    try:
        await asyncio.wait((dismissed, serving), return_when=asyncio.FIRST_COMPLETED)
        spec.board.say(CurrentWork(Phase.LEAVING))
        title("exits")
        if serving.done():
            serving.result()
    finally:
        loop.remove_reader(spec.wake)
        serving.cancel()
        await asyncio.gather(serving, measurer.close(), return_exceptions=True)


async def _serve(spec: ChildSpec, measurer: Measurer, title: Callable[[str], object]) -> None:
    reader = StatusReader(spec.control)
    budget = CpuBudget()
    why_no_page = why_off(spec.settings) if spec.settings.http else ""
    routes = pages(reader, why_no_page=why_no_page) | {
        "/metrics": Exposition(
            JobherdCollector(spec.boards, reader, measurer, spec.settings.served), (measurer,), budget
        ).answer
    }
    if spec.settings.http is None:
        title("has no address to serve")
        _report_ready(spec)
        await asyncio.get_running_loop().create_future()
        return
    host, port = spec.settings.http
    listening = await _listen(spec, host, port, title)
    server = Server(listening, routes, names=names_of(listening, host), budget=budget)
    title(f"serves {server.address}")
    log.info("metrics and health on http://%s", server.address)
    if why_no_page:
        log.info("no dashboard: %s", why_no_page)
        await server.serve()
        return
    log.info("the dashboard is http://%s%s/", server.address, spec.settings.dashboard_path)
    make = partial(make_page, spec.settings, {"": spec.settings.dsn}, spec.boards)
    hosting = Hosting(make, spec.settings.dashboard_path, server)
    server.beyond = hosting.take
    try:
        await server.serve()
    finally:
        await hosting.close()


async def _listen(spec: ChildSpec, host: str, port: int, title: Callable[[str], object]) -> socket.socket:
    """Bind the port, now or once it is free. Report READY either way.

    Otherwise the start of the fleet would hang on a port that only scrapes need.
    """
    rest = RETRY_FIRST
    reported = False
    while True:
        try:
            listening = await bind(host, port)
        except OSError as error:
            if not reported:
                reported = True
                title(f"waits for {host}:{port}")
                why = error.strerror or error
                text = (
                    f"metrics and health are off: cannot listen on {host}:{port} ({why}); "
                    "free the port or set --http; trying again"
                )
                if not send(spec.report, Problem(text)):  # The supervisor logs it.
                    log.warning("%s", text)
                _report_ready(spec)
        else:
            if not reported:
                _report_ready(spec)
            return listening
        await asyncio.sleep(rest)
        rest = min(2 * rest, RETRY_MOST)


def _report_ready(spec: ChildSpec) -> None:
    spec.board.say(CurrentWork(Phase.IDLE))
    # Zeros: this process holds no jobs, so it has no row in the database.
    send(spec.report, Ready(0, 0))
