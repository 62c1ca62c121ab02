"""Runs a web process in a thread of the test, with real pipes, status boards and a real socket.

It is ready once it reports READY, and ends when it is dismissed.
"""

from __future__ import annotations

import http.client
import logging
import os
import queue
import select
import threading
import time
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from jobherd.workers import web
from jobherd.workers.ipc import pipes
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.process.spec import ChildSettings, ChildSpec
from tests.support.patience import LIMIT

NO_DATABASE = "host=/nowhere/at/all port=1 user=jobherd password=canary-secret dbname=jobs"


class Log(logging.Handler):
    """Stores log records in order."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._arrived: queue.Queue[logging.LogRecord] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        self._arrived.put(record)

    def wait_for(self, start: str) -> logging.LogRecord:
        """Return the next record whose message starts with this text."""
        until = time.monotonic() + LIMIT
        while True:
            record = self._arrived.get(timeout=max(0.0, until - time.monotonic()))
            if record.getMessage().startswith(start):
                return record


class Web:
    """``with Web() as web: web.scrape()``"""

    def __init__(
        self,
        dsn: str = NO_DATABASE,
        *,
        slots: int = 4,
        http: tuple[str, int] = ("127.0.0.1", 0),
        schema: str = "jobherd",
        metrics_tenants: int = 0,
        **page: Any,
    ) -> None:
        self.boards = tuple(StatusBoard(f"test-{slot}") for slot in range(slots))
        self.control = ControlBlock()
        self.log = Log()
        self._report, child_report = pipes.open_pipe()
        child_wake, self._wake = pipes.open_pipe()
        self._child = (child_wake, child_report)
        self._inbox = pipes.Inbox()
        self._heard: list[pipes.Report] = []
        self._spec = ChildSpec(
            kind="web",
            slot=slots - 1,
            incarnation=1,
            supervisor=1,
            parent=os.getppid(),
            wake=child_wake,
            report=child_report,
            board=self.boards[-1],
            control=self.control,
            settings=ChildSettings(dsn=dsn, schema=schema, http=http, metrics_tenants=metrics_tenants, **page),
            boards=self.boards,
        )
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = http[1]

    def _run(self) -> None:
        try:
            web.run(self._spec)
        except BaseException as error:
            self._failed = error

    def __enter__(self) -> Self:
        logger = logging.getLogger("jobherd")
        logger.addHandler(self.log)
        self._level = logger.level
        logger.setLevel(logging.INFO)
        self._thread.start()
        self.wait_for(pipes.Ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        logger = logging.getLogger("jobherd")
        logger.removeHandler(self.log)
        logger.setLevel(self._level)
        for fd in (*self._child, self._report):
            os.close(fd)
        if self._failed:
            raise self._failed

    def dismiss(self) -> None:
        """Close the wake pipe, and wait until the web process has exited."""
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
        self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "the web process did not exit when it was dismissed"

    def nudge(self) -> None:
        pipes.wake(self._wake)

    def wait_for(self, what: type[pipes.Report]) -> pipes.Report:
        """Return the next report of this class."""
        until = time.monotonic() + LIMIT
        while True:
            for place, report in enumerate(self._heard):
                if isinstance(report, what):
                    del self._heard[: place + 1]
                    if isinstance(report, pipes.Ready):
                        self._learn_port()
                    return report
            assert select.select([self._report], [], [], max(0.0, until - time.monotonic()))[0], (
                f"no {what.__name__} came"
            )
            self._heard += self._inbox.take(os.read(self._report, 65536))

    def _learn_port(self) -> None:
        if not self.port:
            self.port = int(self.log.wait_for("metrics and health on").getMessage().rpartition(":")[2])

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()

    def scrape(self) -> Scrape:
        status, _, text = self.ask("/metrics")
        assert status == 200, text
        return Scrape(text)


class Scrape:
    """A scrape, as Prometheus parses it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def of(self, name: str, **labels: str) -> float | None:
        """Return the value of exactly this series."""
        return self.samples.get((name, frozenset(labels.items())))

    def all(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Return every series of this name that has these labels, by the values of its other labels."""
        return {
            tuple(value for label, value in sorted(have) if label not in labels): number
            for (series, have), number in self.samples.items()
            if series == name and labels.items() <= dict(have).items()
        }
