"""Builds the metrics of schedules of periodic jobs, from the last measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from jobherd.workers.web.queue_depth import Measurer


def schedule_metrics(measurer: Measurer) -> Iterator[Metric]:
    """Yield the families; none without schedules, or if the measurement is stale."""
    counts = measurer.schedules()
    if counts is None or not counts.states:
        return
    schedules = GaugeMetricFamily("jobherd_schedules", "Schedules of periodic jobs, by state.", labels=["state"])
    late = GaugeMetricFamily(
        "jobherd_schedule_late_seconds", "How long the next instant has been due without a job.", labels=["schedule"]
    )
    delay = GaugeMetricFamily(
        "jobherd_schedule_last_delay_seconds", "How late the last instant was decided.", labels=["schedule"]
    )
    success = GaugeMetricFamily(
        "jobherd_schedule_last_success_timestamp_seconds",
        "When the last run that completed did so, in Unix time.",
        labels=["schedule"],
    )
    previous = GaugeMetricFamily(
        "jobherd_schedule_previous_timestamp_seconds",
        "The instant before the last one that ran or should have, in Unix time.",
        labels=["schedule"],
    )
    ticks = CounterMetricFamily(
        "jobherd_schedule_ticks",
        "Instants of schedules, by what was decided about them.",
        labels=["schedule", "decided"],
    )
    for state, number in counts.states.items():
        schedules.add_metric([state], number)
    for schedule, lateness in sorted(counts.lateness.items()):
        late.add_metric([schedule], max(0.0, lateness.next))
        delay.add_metric([schedule], max(0.0, lateness.last))
    for family, times in ((success, counts.successes), (previous, counts.previous)):
        for schedule, at in sorted(times.items()):
            family.add_metric([schedule], at)
    for labels, number in sorted(counts.instants.items()):
        ticks.add_metric(labels, number)
    yield from (schedules, late, delay, success, previous, ticks)
