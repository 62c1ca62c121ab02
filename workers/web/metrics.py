"""Collects the Prometheus metrics: jobs, child processes, the supervisor, the queues, schedules and flows.

A scrape reads memory and stores nothing, so it slows no child process. Labels are kinds, outcomes,
states, causes, queues and schedules, each of a bounded number over the life of this process (`labels.py`). A
label is never a process ID, a job or a slot. `docs/reference/metrics.md` lists all metrics, and a test
compares the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from jobherd.workers.web.flow_metrics import flow_metrics
from jobherd.workers.web.gateway_metrics import gateway_metrics
from jobherd.workers.web.job_metrics import JobMetrics
from jobherd.workers.web.process_metrics import ProcessMetrics
from jobherd.workers.web.queue_metrics import queue_metrics
from jobherd.workers.web.schedule_metrics import schedule_metrics
from jobherd.workers.web.supervisor_metrics import SupervisorMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client import Metric

    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.web.queue_depth import Measurer
    from jobherd.workers.web.status_report import StatusReader


class JobherdCollector(Collector):
    """Builds all metric families at each scrape. served: the queues of this supervisor; empty: all."""

    def __init__(
        self, boards: Sequence[StatusBoard], reader: StatusReader, measurer: Measurer, served: Sequence[str] = ()
    ) -> None:
        self._served = served
        self._reader = reader
        self._measurer = measurer
        self._boards = boards
        self._jobs = JobMetrics(boards)
        self._processes = ProcessMetrics(boards)
        self._supervisor = SupervisorMetrics()

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families. The registry calls this at each scrape."""
        report = self._reader.read()
        yield from self._jobs.collect(report)
        yield from self._processes.collect(report)
        yield from gateway_metrics(self._boards, report)
        yield from self._supervisor.collect(report)
        has_workers = any(child.kind == "worker" and child.pid for child in report.children)
        yield from queue_metrics(self._measurer, self._served, has_workers=has_workers)
        yield from schedule_metrics(self._measurer)
        yield from flow_metrics(self._measurer)
