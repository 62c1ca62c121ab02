"""What the parent says of the fleet, read from its notice into values. Tolerant: a missing or odd fact is a missing fact, never a crash."""

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
    """A slot as the parent sees it. `pid` is 0 when nobody sits there."""

    slot: int
    kind: str
    state: str
    pid: int = 0
    rss: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """The parent's latest word. Times are monotonic seconds."""

    now: float
    loop_at: float
    """When the parent's loop last turned; 0: never."""
    lease_until: float
    """Past it nobody may claim; 0: there was no lease yet."""
    draining: bool
    told: bool = False
    """The parent has published something."""
    listening: bool = False
    deaf: bool = False
    """Nothing is listened to, and it polls: a pooler stands between, or the server refuses LISTEN."""
    database: bool = False
    ready_ever: bool = False
    at: float = 0.0
    """When it was published."""
    started: float = 0.0
    version: str = ""
    children: tuple[Child, ...] = ()
    deaths: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """respawns, reclaimed, released, notifications, wakes, beats, dropped."""
    settled: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Outcomes that the parent wrote itself, for jobs whose process is dead: kind, outcome, number."""
    timeouts: Mapping[str, int] = field(default_factory=dict)
    """Timeouts that the parent settled itself, by kind."""
    errors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Error codes that the parent wrote itself: kind, code, number."""
    late: Mapping[str, int] = field(default_factory=dict)
    """How often the parent's loop was late, by upper bound in seconds."""
    late_seconds: float = 0.0

    @property
    def loop_age(self) -> float:
        """For how long the parent's loop has not turned, in seconds; infinite before its first turn."""
        return max(0.0, self.now - self.loop_at) if self.loop_at else math.inf

    @property
    def lease_left(self) -> float:
        """For how long claims are still allowed, in seconds; below 0: not any more; 0 before the first lease."""
        return self.lease_until - self.now if self.lease_until else 0.0


COUNTS = ("respawns", "reclaimed", "released", "notifications", "wakes", "beats", "dropped")


class Reader:
    """Reads the notice. A torn record is not believed: then the last good one still stands, so that no counter goes down."""

    def __init__(self, control: ControlBlock, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._last: dict[str, object] = {}

    def read(self) -> Facts:
        """Return what the parent says now."""
        try:
            said = self._control.facts()
        except ValueError:
            said = {}
        self._last = said or self._last
        return understand(
            self._last,
            now=self._clock(),
            loop_at=self._control.loop_at,
            lease_until=self._control.lease_deadline,
            draining=self._control.draining,
        )


def understand(said: Mapping[str, Any], *, now: float, loop_at: float, lease_until: float, draining: bool) -> Facts:
    """Return the document as values.

    >>> understand({"listening": True, "beats": 3}, now=9.0, loop_at=8.5, lease_until=20.0, draining=False).loop_age
    0.5
    """
    return Facts(
        now=now,
        loop_at=loop_at,
        lease_until=lease_until,
        draining=draining or said.get("draining") is True,
        told=bool(said),
        listening=said.get("listening") is True,
        deaf=said.get("deaf") is True,
        database=said.get("database") is True,
        ready_ever=said.get("ready_ever") is True,
        at=_time(said.get("at")),
        started=_time(said.get("started")),
        version=str(said.get("version") or ""),
        children=tuple(_child(one) for one in said.get("children") or () if isinstance(one, dict)),
        deaths=_numbers(said.get("deaths")),
        counts={name: _number(said.get(name)) for name in COUNTS},
        settled={str(kind): _numbers(outcomes) for kind, outcomes in (said.get("settled") or {}).items()},
        timeouts=_numbers(said.get("timeouts")),
        errors={str(kind): _numbers(codes) for kind, codes in (said.get("errors") or {}).items()},
        late=_numbers(said.get("late")),
        late_seconds=_time(said.get("late_seconds")),
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
