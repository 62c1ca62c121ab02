"""Builds the metrics of the supervisor: deaths, lease, notifications and its loop."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

from jobherd.workers.web.labels import Labels, label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from jobherd.workers.web.status_report import StatusReport

CAUSES: Final = 64
"""Causes of death that are shown by name. All others count as "(other)"."""


class SupervisorMetrics:
    """Builds the metric families of the supervisor at each scrape."""

    def __init__(self) -> None:
        self._causes = Labels[str](CAUSES)
        self._born: tuple[float, float] = (0.0, 0.0)

    def collect(self, report: StatusReport) -> Iterator[Metric]:
        """Yield the families."""
        deaths = CounterMetricFamily(
            "jobherd_child_deaths",
            "Child processes that ended, by cause; `requested` is an exit that the supervisor requested.",
            labels=["cause"],
        )
        shown: dict[str, int] = {}
        for cause, number in sorted(report.deaths.items()):
            called = label(self._causes, cause)
            shown[called] = shown.get(called, 0) + number
        for cause, number in shown.items():
            deaths.add_metric([cause], number)
        yield deaths
        counts = report.counts
        yield CounterMetricFamily(
            "jobherd_child_respawns", "Child processes forked to replace one that died.", value=counts["respawns"]
        )
        yield CounterMetricFamily(
            "jobherd_jobs_reclaimed", "Jobs reclaimed from supervisors whose lease expired.", value=counts["reclaimed"]
        )
        yield CounterMetricFamily(
            "jobherd_jobs_released", "Jobs released for workers that died.", value=counts["released"]
        )
        yield CounterMetricFamily(
            "jobherd_notifications", "Notifications received from the database.", value=counts["notifications"]
        )
        yield CounterMetricFamily("jobherd_wakes", "Workers woken to look for jobs.", value=counts["wakes"])
        yield CounterMetricFamily("jobherd_lease_renewals", "Times the lease was renewed.", value=counts["renewals"])
        yield GaugeMetricFamily(
            "jobherd_lease_seconds",
            "Seconds until the lease may expire; below 0, it has expired.",
            value=report.lease_left,
        )
        yield GaugeMetricFamily(
            "jobherd_listening", "Whether the supervisor receives notifications.", value=report.listening
        )
        yield GaugeMetricFamily(
            "jobherd_database_up", "Whether the supervisor reaches its database.", value=report.database
        )
        yield GaugeMetricFamily("jobherd_draining", "Whether the supervisor is draining.", value=report.draining)
        yield GaugeMetricFamily(
            "jobherd_loop_age_seconds", "Time since the last turn of the supervisor's loop.", value=report.loop_age
        )
        yield CounterMetricFamily(
            "jobherd_log_lines_dropped",
            "Supervisor log lines that were dropped because they were not read.",
            value=counts["dropped"],
        )
        if report.late:
            yield HistogramMetricFamily(
                "jobherd_loop_late_seconds",
                "How long an event may have waited for the supervisor's loop.",
                buckets=list(zip(report.late, accumulate(report.late.values()), strict=True)),
                sum_value=report.late_seconds,
            )
        if report.started:
            # Computed once: the difference between two clocks would make the value jitter.
            if self._born[0] != report.started:
                self._born = (report.started, time.time() - (report.now - report.started))
            yield GaugeMetricFamily(
                "jobherd_start_time_seconds", "When the supervisor started, in Unix time.", value=self._born[1]
            )
        yield InfoMetricFamily("jobherd_build", "Version of Jobherd.", value={"version": report.version})
