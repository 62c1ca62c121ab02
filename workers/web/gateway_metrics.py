"""Builds the metrics of the gateway: streams of remote workers, their slots, and what passes over them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from jobherd.workers.ipc.gateway_counts import HISTOGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.web.status_report import StatusReport


def gateway_metrics(boards: Sequence[StatusBoard], report: StatusReport) -> Iterator[Metric]:
    """Yield the families. A supervisor without a gateway has no series."""
    streams = GaugeMetricFamily(
        "jobherd_gateway_streams", "Streams of remote workers that are connected.", labels=["service"]
    )
    slots = GaugeMetricFamily(
        "jobherd_gateway_slots", "Slots of remote workers: jobs that they have, or wait for.", labels=["state"]
    )
    counters = {
        "messages": CounterMetricFamily(
            "jobherd_gateway_messages", "Messages on streams of remote workers.", labels=["direction"]
        ),
        "results": CounterMetricFamily(
            "jobherd_gateway_results", "Results of remote workers, by the answer that they got.", labels=["answer"]
        ),
        "sessions": CounterMetricFamily(
            "jobherd_gateway_sessions",
            "Sessions of remote workers that were opened, resumed on a new stream, or ended.",
            labels=["event"],
        ),
        "refused": CounterMetricFamily(
            "jobherd_gateway_refused", "Calls, streams and Readys that the gateway rejected or ended.", labels=["why"]
        ),
    }
    histograms = {
        "tasks_per_message": HistogramMetricFamily(
            "jobherd_gateway_tasks_per_message", "Jobs in each message that contains jobs."
        ),
        "write_wait": HistogramMetricFamily(
            "jobherd_gateway_write_wait_seconds", "Time until the network accepted a message to a remote worker."
        ),
    }
    for child in report.children:
        if child.kind == "gateway" and child.pid and child.slot < len(boards):
            board = boards[child.slot]
            for service, number in board.streams.items():
                streams.add_metric([service], number)
            slots.add_metric(["waiting"], board.wanted)
            slots.add_metric(["running"], board.held)
            for family, counter in counters.items():
                for label, count in board.remote.counter(family).items():
                    counter.add_metric([label], count)
            for family, histogram in histograms.items():
                buckets, total = board.remote.histogram(family)
                bounds = (*(str(float(bound)) for bound in HISTOGRAMS[family]), "+Inf")
                histogram.add_metric([], list(zip(bounds, accumulate(buckets), strict=True)), total)
    yield from (streams, slots, *counters.values(), *histograms.values())
