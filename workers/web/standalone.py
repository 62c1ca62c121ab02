"""Serves the dashboard of one or several databases, and their metrics, without a supervisor.

The metrics are those that are queried: queues, schedules and flows. Each has a label for the
database. What a supervisor counts itself is only in its own metrics.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from jobherd.workers.web.cpu_budget import CpuBudget
from jobherd.workers.web.exposition import Exposition
from jobherd.workers.web.flow_metrics import flow_metrics
from jobherd.workers.web.page_handoff import Hosting, make_page
from jobherd.workers.web.queue_depth import Measurer
from jobherd.workers.web.queue_metrics import SERVED, queue_metrics
from jobherd.workers.web.schedule_metrics import schedule_metrics
from jobherd.workers.web.server import Server, bind, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jobherd.workers.web.page_handoff import PageSettings


class DatabasesCollector(Collector):
    """Builds the metrics of databases that are queried. measurers: by the label `database`."""

    def __init__(self, measurers: Mapping[str, Measurer]) -> None:
        self._measurers = measurers

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return each family once, with the samples of all databases."""
        up = GaugeMetricFamily(
            "jobherd_database_up", "Whether the last query reached the database.", labels=["database"]
        )
        families: dict[str, Metric] = {up.name: up}
        for name, measurer in self._measurers.items():
            up.add_metric([name], measurer.is_up)
            queues = queue_metrics(measurer, (), has_workers=False)
            for found in (*queues, *schedule_metrics(measurer), *flow_metrics(measurer)):
                if found.name != SERVED:  # only a supervisor knows what it serves
                    family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                    family.samples += [
                        each._replace(labels={"database": name, **each.labels}) for each in found.samples
                    ]
        return families.values()


async def serve(settings: PageSettings, databases: Mapping[str, str], started: Callable[[str], object]) -> None:
    """Serve until canceled. Raises OSError if the address cannot be used.

    Args:
        settings: about the dashboard; `http` is set.
        databases: addresses by name.
        started: called with the address of the dashboard.
    """
    assert settings.http is not None
    host, port = settings.http
    listening = await bind(host, port)
    budget = CpuBudget()
    measurers = {name: Measurer(dsn, settings.schema) for name, dsn in databases.items()}
    metrics = Exposition(DatabasesCollector(measurers), tuple(measurers.values()), budget)
    server = Server(listening, {"/metrics": metrics.answer}, names=names_of(listening, host), budget=budget)
    hosting = Hosting(partial(make_page, settings, databases), settings.dashboard_path, server)
    server.beyond = hosting.take
    started(f"http://{server.address}{settings.dashboard_path}/")
    try:
        await server.serve()
    finally:
        await hosting.close()
        for measurer in measurers.values():
            await measurer.close()
