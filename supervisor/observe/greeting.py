"""Log lines after the first worker is READY: kinds, workers, queues, dashboard, how to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.settings.definitions import shown
from jobherd.supervisor.settings.readers import show_span
from jobherd.workers.ipc.counters import OTHER_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.supervisor.settings.definitions import Settings
    from jobherd.workers.ipc.status_board import StatusBoard

NAMED: Final = 8
"""Maximum number of kinds that are named."""


def greeting(settings: Settings, boards: Sequence[StatusBoard], *, page: bool) -> list[str]:
    """Return the lines.

    Args:
        settings: the settings.
        boards: the status boards of the slots; the first one with any kinds is used.
        page: whether the extra `web` is installed.
    """
    found = (sorted(kind.name for kind in board.tally.kind_counts() if kind.name != OTHER_KINDS) for board in boards)
    kinds = next((names for names in found if names), [])
    more = f" and {len(kinds) - NAMED} more" if len(kinds) > NAMED else ""
    queues = ", ".join(settings.queues) or "all"
    web = []
    if settings.http is not None and settings.http[1]:
        address = f"http://{shown('http', settings.http)}"
        serves_page = settings.page and page
        web = [
            f"dashboard {address}{settings.page_path}/" if serves_page else f"metrics {address}/metrics, no dashboard"
        ]
    return [
        f"serves {len(kinds)} {'kind' if len(kinds) == 1 else 'kinds'}: {', '.join(kinds[:NAMED])}{more}",
        "; ".join([f"{settings.workers} {'worker' if settings.workers == 1 else 'workers'}, queues: {queues}", *web]),
        f"stop with Ctrl-C: running jobs may finish within {show_span(settings.drain_timeout)}; a second Ctrl-C returns them to their queues",
    ]
