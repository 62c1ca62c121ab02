"""Builds the metrics of flows and of jobs that wait for others, from the last measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from jobherd.workers.web.queue_depth import Measurer


def flow_metrics(measurer: Measurer) -> Iterator[Metric]:
    """Yield the families; none of what was never there, or if the measurement is stale."""
    counts = measurer.flows()
    if counts is None:
        return
    if counts.seen_waits:
        suspended = GaugeMetricFamily(
            "jobherd_suspended_jobs", "Jobs that wait for a signal or for child jobs.", labels=["waits_for"]
        )
        for what, number in counts.suspended.items():
            suspended.add_metric([what], number)
        yield suspended
        yield CounterMetricFamily("jobherd_signals", "Signals that were sent.", value=counts.signals)
    if not counts.seen:
        return
    flows = GaugeMetricFamily("jobherd_flows", "Flows that have not ended, by state.", labels=["state"])
    for state, number in counts.open.items():
        flows.add_metric([state], number)
    ended = SummaryMetricFamily(
        "jobherd_flow_duration_seconds", "Flows that have ended, by state, and their duration.", labels=["state"]
    )
    for state, (number, seconds) in counts.ended.items():
        ended.add_metric([state], count_value=number, sum_value=seconds)
    yield flows
    yield ended
    yield GaugeMetricFamily("jobherd_blocked_jobs", "Jobs that wait for other jobs.", value=counts.blocked)
    yield GaugeMetricFamily(
        "jobherd_resolver_lag_seconds",
        "Time since the oldest end of a job that has not released the jobs that wait for it.",
        value=counts.lag,
    )
