"""Enqueues the jobs of due schedules, and plans new and edited ones.

A database without schedules costs no statement: `end_pauses` returns when a schedule is due. Several
maintenance processes do no harm: a schedule that another one has changed meanwhile is left alone.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._policy.timing import zone_version
from jobherd.workers.maintenance.ticks import decide, moment, plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.workers.database.connection import Session

_log = logging.getLogger("jobherd.maintenance")

_MOST: Final = 200
_INSTANTS: Final = 1000
"""Instants in one statement, unless one schedule has more. After an outage, all at once would exceed the deadline."""
_LOCKED: Final = 0.05
"""Another process has locked a due schedule. Look again after this many seconds."""
_UNKNOWN: Final = 1.0
"""Seconds until the next look while a schedule is due whose time zone this host does not know."""
_FOR_EVER: Final = float("inf")


class Schedules:
    """Runs the due schedules of the fleet.

    by: this process, as the instants show it.
    due_at: monotonic time at which `run` is due next.
    used: there are schedules.
    postponed: workers could not store some, perhaps the first ones.
    """

    def __init__(self, session: Session, by: str) -> None:
        self.due_at = _FOR_EVER
        self.used = False
        self.postponed = False
        self._session = session
        self._by = by
        self._unknown: dict[str, int] = {}
        """Revision of the schedules whose instants this host cannot calculate. Another one may."""

    def note(self, due_in: float | None) -> None:
        """Note in how many seconds a schedule is due. None: there are none."""
        self.due_at = _FOR_EVER if due_in is None else time.monotonic() + max(0.0, due_in)
        if due_in is not None and not self.used:
            self._session.run("schedule/replan_schedules", {"planned_with": zone_version()})
        self.used = due_in is not None

    def run(self) -> None:
        """Decide and plan what is due."""
        while True:
            rows = self._session.run("schedule/find_due_schedules", {"most": _MOST})
            plans, decisions, watched = self._decide(rows)
            changed = self.pause_failing(watched) if watched else 0
            if plans:
                wanted = {"plans": json.dumps(plans), "planned_with": zone_version(), "by": self._by}
                changed += len(self._session.run("schedule/plan_schedules", wanted))
            for some in _slices(decisions):
                wanted = {"decisions": json.dumps(some), "by": self._by}
                changed += len(self._session.run("schedule/tick_schedules", wanted))
            if len(rows) < _MOST or not changed:
                break
        [(due_in,)] = self._session.run("schedule/tend_schedules", {"by": self._by})
        self.note(due_in)
        if rows and not changed:
            # Otherwise this process would ask for the same rows without a pause.
            self.due_at = max(self.due_at, time.monotonic() + (_UNKNOWN if self._unknown else _LOCKED))

    def pause_failing(self, names: list[str] | None = None) -> int:
        """Pause the schedules of these names whose last runs failed, and return how many. None: all.

        A decision about a schedule that is paused here has no effect: its revision has changed.
        """
        paused = self._session.run("schedule/pause_failing", {"names": names})
        for name, reason in paused:
            _log.warning("schedule %s is paused: %s", name, reason)
        return len(paused)

    def retire(self) -> None:
        """Store what workers could not store, and stop the schedules that no handler declares any more."""
        for (name,) in self._session.run("schedule/declare_postponed"):
            _log.info("schedule %s is stored as its handler declares it", name)
        for (name,) in self._session.run("schedule/retire_schedules"):
            _log.warning("schedule %s is retired: no handler has declared it for 10 minutes", name)

    def _decide(self, rows: list[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
        """Return plans, decisions, and the names among these that failed runs may pause."""
        plans, decisions, watched = [], [], []
        unknown: dict[str, int] = {}
        for text, now, live in rows:
            row = orjson.loads(text)
            if row["plan_from"] is not None and not row["asked"]:
                plans.append(plan(row))
                if error := plans[-1].get("error"):
                    _log.warning("schedule %s cannot be planned: %s", row["name"], error)
                continue
            try:
                decision = decide(row, moment(now), live)
            except (ValueError, OverflowError) as problem:
                unknown[row["name"]] = row["revision"]
                if self._unknown.get(row["name"]) != row["revision"]:
                    _log.warning("this host cannot run schedule %s: %s", row["name"], problem)
                continue
            if decision is not None:
                decisions.append(decision)
                if "pause_after" in row["options"] and row["paused_at"] is None:
                    watched.append(row["name"])
        self._unknown = unknown
        return plans, decisions, watched


def _slices(decisions: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the decisions in parts of at most `_INSTANTS` instants, or of one decision."""
    some: list[dict[str, Any]] = []
    instants = 0
    for decision in decisions:
        instants += len(decision["instants"])
        if some and instants > _INSTANTS:
            yield some
            some, instants = [], len(decision["instants"])
        some.append(decision)
    if some:
        yield some
