"""Reads the supervisor's status report from the control block.

A missing or malformed value counts as missing and never raises.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.workers.ipc.control_block import ControlBlock


@dataclass(frozen=True, slots=True)
class Child:
    """A slot as the supervisor sees it. `pid` is 0 if the slot is empty."""

    slot: int
    kind: str
    state: str
    pid: int = 0
    rss: int = 0


@dataclass(frozen=True, slots=True)
class StatusReport:
    """What the supervisor published last. Times are monotonic seconds."""

    now: float
    loop_at: float
    """Time of the last turn of the supervisor's loop; 0: it has not turned yet."""
    lease_until: float
    """No process may claim after this time; 0: there was no lease yet."""
    draining: bool
    published: bool = False
    """Whether the supervisor has published something."""
    listening: bool = False
    polling: bool = False
    """Whether the supervisor polls without LISTEN.

    It does so behind a pooler, or if the server rejects LISTEN.
    """
    database: bool = False
    ready_ever: bool = False
    at: float = 0.0
    """When the supervisor published this report."""
    started: float = 0.0
    version: str = ""
    children: tuple[Child, ...] = ()
    deaths: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """The keys are those of `COUNTS`; `renewals` counts lease renewals, `dropped` lost log lines."""
    settled: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Outcomes that the supervisor wrote for jobs of dead processes: kind, outcome, number."""
    timeouts: Mapping[str, int] = field(default_factory=dict)
    """Timeouts that the supervisor settled itself, by kind."""
    errors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Error codes that the supervisor wrote itself: kind, code, number."""
    late: Mapping[str, int] = field(default_factory=dict)
    """How often the supervisor's loop was late, by upper bound in seconds."""
    late_seconds: float = 0.0

    @property
    def loop_age(self) -> float:
        """Seconds since the last turn of the supervisor's loop; infinite before its first turn."""
        return max(0.0, self.now - self.loop_at) if self.loop_at else math.inf

    @property
    def lease_left(self) -> float:
        """Seconds for which claims are allowed; below 0: no longer; 0 before the first lease."""
        return self.lease_until - self.now if self.lease_until else 0.0


COUNTS = ("respawns", "reclaimed", "released", "notifications", "wakes", "renewals", "dropped")


class StatusReader:
    """Reads the status report from the control block.

    An inconsistent record is ignored: the last good one stays valid, so that no counter goes down.
    """

    def __init__(self, control: ControlBlock, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._last: dict[str, object] = {}

    def read(self) -> StatusReport:
        """Return the current report of the supervisor."""
        try:
            document = self._control.facts()
        except ValueError:
            document = {}
        self._last = document or self._last
        return understand(
            self._last,
            now=self._clock(),
            loop_at=self._control.loop_at,
            lease_until=self._control.lease_deadline,
            draining=self._control.draining,
        )


def understand(
    document: Mapping[str, Any], *, now: float, loop_at: float, lease_until: float, draining: bool
) -> StatusReport:
    """Convert the published document to a `StatusReport`.

    >>> understand({"listening": True, "renewals": 3}, now=9.0, loop_at=8.5, lease_until=20.0, draining=False).loop_age
    0.5
    """
    return StatusReport(
        now=now,
        loop_at=loop_at,
        lease_until=lease_until,
        draining=draining or document.get("draining") is True,
        published=bool(document),
        listening=document.get("listening") is True,
        polling=document.get("polling") is True,
        database=document.get("database") is True,
        ready_ever=document.get("ready_ever") is True,
        at=_time(document.get("at")),
        started=_time(document.get("started")),
        version=str(document.get("version") or ""),
        children=tuple(_child(one) for one in document.get("children") or () if isinstance(one, dict)),
        deaths=_numbers(document.get("deaths")),
        counts={name: _number(document.get(name)) for name in COUNTS},
        settled={str(kind): _numbers(outcomes) for kind, outcomes in (document.get("settled") or {}).items()},
        timeouts=_numbers(document.get("timeouts")),
        errors={str(kind): _numbers(codes) for kind, codes in (document.get("errors") or {}).items()},
        late=_numbers(document.get("late")),
        late_seconds=_time(document.get("late_seconds")),
    )


def _child(one: Mapping[str, Any]) -> Child:
    return Child(
        slot=_number(one.get("slot")),
        kind=str(one.get("kind") or "worker"),
        state=str(one.get("state") or "empty"),
        pid=_number(one.get("pid")),
        rss=_number(one.get("rss")),
    )


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def _time(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _numbers(value: object) -> dict[str, int]:
    return {str(name): _number(number) for name, number in value.items()} if isinstance(value, dict) else {}
