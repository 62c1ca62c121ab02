"""Charts and failures of a window: of all jobs, or those of one kind, queue or host.

Everything comes from the rollup. A queue and a host have averages there and no percentiles.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jobherd.workers.dashboard.charts import Chart, Series, Window, bars, lines, window_of
from jobherd.workers.dashboard.redaction import Redactions, redact_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.workers.dashboard.database import Database, Reading, Row

SHOWN: Final = 12
"""Groups of failures that are shown."""
BUSIEST: Final = 3
"""Kinds, queues and hosts whose largest slice is shown, of each as many."""
UNCOUNTED: Final = 1000
"""Newest jobs by id that did not complete, among which those not yet in the rollup are counted."""
RETRYING: Final = {"most": 10_000, "rows": SHOWN}
SCOPES: Final = ("queue", "host")
ENDED: Final = (Series("completed", "completed", "accent"),)
TROUBLED: Final = (
    Series("failed", "failed", "bad"),
    Series("expired", "expired", "warn"),
    Series("retried", "failed attempts", "soft", of_jobs=False),
)
WAITED: Final = (Series("waited_p50", "half within", "accent"), Series("waited_p95", "95 % within", "warn"))
RAN: Final = (Series("ran_p50", "half within", "accent"), Series("ran_p95", "95 % within", "warn"))
WAITED_MEAN: Final = (Series("waited_mean", "average", "accent"),)
RAN_MEAN: Final = (Series("ran_mean", "average", "accent"),)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Whose jobs the charts show. scope: "kind", "queue", "host", or "": all jobs."""

    scope: str = ""
    name: str = ""

    @classmethod
    def read(cls, text: str) -> Chosen:
        """Return what `text` writes: nothing, a kind, or "queue" or "host" and a name.

        No kind contains a space.

        >>> Chosen.read("host web-1"), Chosen.read("mail:send").scope, Chosen.read("").scope
        (Chosen(scope='host', name='web-1'), 'kind', '')
        """
        scope, _, name = text.partition(" ")
        if scope in SCOPES and name:
            return cls(scope, name)
        return cls("kind", text) if text else cls()

    @property
    def text(self) -> str:
        """As `read` takes it."""
        return f"{self.scope} {self.name}" if self.scope in SCOPES else self.name

    @property
    def query(self) -> str:
        """The end of an address of the list of these jobs. The list has no filter for a host."""
        return f"&{urlencode([(self.scope, self.name)])}" if self.scope in {"kind", "queue"} else ""


async def ask_window_charts(data: Database, argument: str) -> dict[str, Any]:
    """Return the charts and failures of a window.

    argument: "hour", "day" or "week", optionally followed by a space and the text of a `Chosen`.
    """
    name, _, text = argument.partition(" ")
    window, chosen = window_of(name), Chosen.read(text)
    # Two sessions at once: the sums take as long as all else.
    (rows, whole), others = await asyncio.gather(_sums(data, window, chosen), _others(data, window, chosen))
    return {
        "window": window,
        "chosen": chosen,
        "charts": charts_of(rows, window, chosen),
        "whole": whole,
        **others,
    }


async def _sums(data: Database, window: Window, chosen: Chosen) -> tuple[list[Row], Row]:
    async with data.reading() as reading:
        return await sums(reading, window, chosen)


async def _others(data: Database, window: Window, chosen: Chosen) -> dict[str, Any]:
    found: dict[str, Any] = {"failures": [], "retrying": [], "busiest": [], "uncounted": 0}
    if chosen.scope in SCOPES:
        return found
    kind = chosen.name or None
    async with data.reading() as reading:
        found["failures"] = await _failures(reading, window, kind)
        retrying = await reading.rows("observe/list_retrying", RETRYING)
        found["retrying"] = [row for row in retrying if not kind or row["kind"] == kind]
        [late] = await reading.rows("dashboard/count_uncounted", {"kind": kind, "most": UNCOUNTED})
        found["uncounted"] = late["jobs"]
        if kind is None:
            wanted = {"seconds": window.seconds, "point": window.point, "most": BUSIEST}
            found["busiest"] = await reading.rows("dashboard/list_busiest", wanted)
    return found


async def sums(data: Reading, window: Window, chosen: Chosen) -> tuple[list[Row], Row]:
    """Return the sums of each point of a window, in order, and those of the whole window."""
    span = {"seconds": window.seconds, "point": window.point}
    if chosen.scope in SCOPES:
        *rows, whole = await data.rows("dashboard/sum_scope_chart", span | {"scope": chosen.scope, "name": chosen.name})
    else:
        *rows, whole = await data.rows("dashboard/sum_chart", span | {"kind": chosen.name or None})
    return rows, whole


def charts_of(rows: Sequence[Mapping[str, object]], window: Window, chosen: Chosen) -> list[Chart]:
    """Return the four charts of finished jobs."""
    if chosen.scope not in SCOPES:
        return [
            bars("Completed", rows, ENDED, window),
            bars("Failed", rows, TROUBLED, window),
            lines("Start delay", rows, WAITED, window),
            lines("Duration", rows, RAN, window),
        ]
    return [
        bars("Completed", rows, ENDED, window),
        bars("Failed", rows, TROUBLED[:2] if chosen.scope == "queue" else TROUBLED, window),
        lines("Start delay, average", rows, WAITED_MEAN, window),
        lines("Duration, average", rows, RAN_MEAN, window),
    ]


async def _failures(data: Reading, window: Window, kind: str | None) -> list[Row]:
    hidden = await Redactions().read(data)
    wanted = {"seconds": window.seconds, "kind": kind, "most": SHOWN, "hidden": list(hidden)}
    failures = await data.rows("dashboard/list_failures", wanted)
    for failure in failures:
        failure["error"] = redact_text(failure["error"], failure.pop("payload"), hidden.get(failure["kind"], ()))
    return failures
