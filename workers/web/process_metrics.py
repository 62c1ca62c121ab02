"""Builds the metrics of child processes: states, memory and database sessions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

from jobherd.workers.ipc.current_work import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from jobherd.workers.ipc.current_work import CurrentWork
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.web.status_report import Child, StatusReport

_STATE: Final = re.compile(r"[a-z_]{1,20}")
_PHASES: Final = tuple(phase for phase in Phase if phase is not Phase.TOGETHER)
"""The metric does not distinguish one running job from several in a batch handler."""
_READY: Final = "ready"


class ProcessMetrics:
    """Builds the metric families of child processes at each scrape."""

    def __init__(self, boards: Sequence[StatusBoard]) -> None:
        self._boards = boards

    def collect(self, report: StatusReport) -> Iterator[Metric]:
        """Yield the families."""
        states: dict[tuple[str, str], int] = {}
        memory: dict[str, int] = {}
        connected: dict[str, int] = {}
        for child in report.children:
            connected.setdefault(child.kind, 0)
            for phase in _PHASES:
                states.setdefault((child.kind, phase.name.lower()), 0)
            if not child.pid:
                continue
            key = (child.kind, self._state(child))
            states[key] = states.get(key, 0) + 1
            if child.rss:  # measured only if there is a memory limit
                memory[child.kind] = memory.get(child.kind, 0) + child.rss
            connected[child.kind] += self._boards[child.slot].database if child.slot < len(self._boards) else 0
        children = GaugeMetricFamily("jobherd_children", "Living child processes, by state.", labels=["kind", "state"])
        for key, number in states.items():
            children.add_metric(key, number)
        resident = GaugeMetricFamily(
            "jobherd_children_resident_bytes", "Total memory of living child processes.", labels=["kind"]
        )
        sessions = GaugeMetricFamily(
            "jobherd_children_connected", "Child processes that have a database session.", labels=["kind"]
        )
        for kind, size in memory.items():
            resident.add_metric([kind], size)
        for kind, number in connected.items():
            sessions.add_metric([kind], number)
        yield from (children, resident, sessions)

    def _state(self, child: Child) -> str:
        """Return the state of a living process, from its board if it is READY.

        Else return the supervisor's view.
        """
        if child.state != _READY:
            return child.state if _STATE.fullmatch(child.state) else "idle"
        now = current_work(self._boards[child.slot]) if child.slot < len(self._boards) else None
        if now is not None and now.runs:
            return "running"
        return "idle" if now is None or now.phase is Phase.BOOTING else now.phase.name.lower()


def current_work(board: StatusBoard) -> CurrentWork | None:
    """Return what the process of a board does, or None if the board is corrupted."""
    try:
        return board.now()
    except ValueError:  # not a valid phase: a process has corrupted its board
        return None
