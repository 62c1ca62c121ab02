"""Builds the metrics of queues, pauses, limits and tenants, from the last measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

from jobherd.workers.process.spec import is_served
from jobherd.workers.web.queue_counts import STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from jobherd.workers.web.queue_counts import Depth
    from jobherd.workers.web.queue_depth import Measurer

SERVED: Final = "jobherd_queue_served"
"""A family that only a supervisor can show."""


def queue_metrics(measurer: Measurer, served: Sequence[str], *, has_workers: bool) -> Iterator[Metric]:
    """Yield the families. served: the queues of this supervisor's workers, or prefixes; empty: all."""
    jobs = GaugeMetricFamily("jobherd_queue_jobs", "Jobs in a queue, in the whole database.", labels=["queue", "state"])
    capped = GaugeMetricFamily(
        "jobherd_queue_jobs_capped",
        "Whether counting stopped early: the queue may have more jobs.",
        labels=["queue", "state"],
    )
    oldest = GaugeMetricFamily(
        "jobherd_queue_oldest_seconds", "How long the oldest job has waited, or run.", labels=["queue", "state"]
    )
    paused = GaugeMetricFamily("jobherd_queue_paused", "Whether a queue is paused.", labels=["queue"])
    serves = GaugeMetricFamily(SERVED, "Whether workers of this supervisor serve a queue.", labels=["queue"])
    at = GaugeMetricFamily(
        "jobherd_queues_measured_timestamp_seconds", "When the queues were last measured.", labels=["state"]
    )
    queues = measurer.paused()
    found = measurer.latest()
    for state in STATES:
        measured = found.get(state)
        if measured is None:
            continue
        for queue, depth in _filled(measured.depths, queues):
            jobs.add_metric([queue, state], depth.jobs if depth else 0)
            capped.add_metric([queue, state], depth.capped if depth else 0)
            oldest.add_metric([queue, state], depth.oldest if depth else 0)
    for state, moment in measurer.measured_at().items():
        at.add_metric([state], moment)
    for queue, held in queues.items():
        paused.add_metric([queue], held)
        serves.add_metric([queue], has_workers and is_served(queue, served))
    gate = GaugeMetricFamily(
        "jobherd_paused", "Whether a queue, a kind or everything is paused.", labels=["scope", "name"]
    )
    limit = GaugeMetricFamily(
        "jobherd_concurrency_limit", "How many jobs of a queue or kind may run at a time.", labels=["scope", "name"]
    )
    taken = GaugeMetricFamily(
        "jobherd_concurrency_running",
        "Running jobs of a limited queue or kind, over all hosts.",
        labels=["scope", "name"],
    )
    rate = GaugeMetricFamily(
        "jobherd_rate_limit", "How many jobs of a queue or kind may start in a second.", labels=["scope", "name"]
    )
    tokens = GaugeMetricFamily(
        "jobherd_rate_tokens",
        "How many jobs of a rate-limited queue or kind may start now, over all hosts.",
        labels=["scope", "name"],
    )
    for each in measurer.gates():
        gate.add_metric([each.scope, each.name], each.paused)
        if each.most is not None:
            limit.add_metric([each.scope, each.name], each.most)
            taken.add_metric([each.scope, each.name], each.running or 0)
        if each.per_second is not None:
            rate.add_metric([each.scope, each.name], each.per_second)
            tokens.add_metric([each.scope, each.name], each.tokens or 0)
    yield from (jobs, capped, oldest, paused, serves, gate, limit, taken, rate, tokens, at)
    if divided := measurer.partitions():
        ready = GaugeMetricFamily("jobherd_partitions_ready", "Partitions with ready jobs.", labels=["queue"])
        throttled = GaugeMetricFamily(
            "jobherd_partitions_throttled", "Partitions whose ready jobs wait for a token.", labels=["queue"]
        )
        for queue, (waiting, without) in divided.items():
            ready.add_metric([queue], waiting)
            throttled.add_metric([queue], without)
        yield from (ready, throttled)
    if owned := measurer.tenants():
        tenants = GaugeMetricFamily(
            "jobherd_tenant_jobs", "Jobs of a tenant, in the whole database.", labels=["tenant", "state"]
        )
        for (tenant, state), number in owned.items():
            tenants.add_metric([tenant, state], number)
        yield tenants


def _filled(depths: Mapping[str, Depth], queues: Iterable[str]) -> Iterator[tuple[str, Depth | None]]:
    """Yield the depth of every known queue, or None for a queue in which no job was found."""
    for queue in sorted({*depths, *queues}):
        yield queue, depths.get(queue)
