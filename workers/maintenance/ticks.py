"""Decides what becomes of the due instants of a schedule: which run, which did not, and what is next.

It turns a row of `schedules` into a decision for `jobherd.tick` or a plan for
`jobherd.plan_schedules`, both as JSON values. It uses no clock and no connection: the caller gives
the database's time.
"""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Final, TypeAlias

from jobherd.handlers._policy.template import Instant, fill
from jobherd.handlers._policy.timing import Timing

Row: TypeAlias = "dict[str, Any]"
"""A row of `schedules`, as `to_jsonb` gives it."""
Run: TypeAlias = "dict[str, Any]"
"""An instant with its decision, as `jobherd.tick` takes it."""

LATE: Final = 60.0
"""Seconds after which an instant without a job counts as missed, and the misfire policy decides."""
SLICE: Final = 100
"""Most instants of a backfill in one transaction."""
_DAY: Final = 86400.0
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST: Final = 500


def plan(row: Row) -> dict[str, Any]:
    """Return the next instant of a schedule that was made, edited, resumed or declared again.

    If it cannot be planned, the plan has an error and no instant.
    """
    answer: dict[str, Any] = {"name": row["name"], "revision": row["revision"]}
    start = moment(row["plan_from"])
    try:
        timing = timing_of(row)
        upcoming = timing.next(start)
        answer["next"] = None if upcoming is None else upcoming.isoformat()
        if row["gap_from"] is not None:
            count, last = timing.between(moment(row["gap_from"]), start, 1)
            if count:
                answer |= {"gap_at": last[-1].isoformat(), "gap_missed": count - 1}
    except (ValueError, OverflowError) as problem:
        answer["error"] = str(problem)[:_LONGEST]
    return answer


def decide(row: Row, now: datetime, live: int | None) -> dict[str, Any] | None:
    """Return what becomes of the instants up to `now`. None: nothing is due.

    live: unfinished jobs of the schedule's backfill. Raises ValueError if this host cannot
    calculate the instants.
    """
    timing = timing_of(row)
    runs = [_run(row, timing, moment(at), "manual") for at in row["asked"]]
    upcoming = None if row["next_at"] is None else moment(row["next_at"])
    active = row["paused_at"] is None and row["retired_at"] is None and row["plan_from"] is None
    backfill = row["backfill"]
    if active and upcoming is not None and upcoming <= now:
        runs += _due(row, timing, upcoming, now)
        # Strictly later, also if the clock was set back meanwhile.
        upcoming = timing.next(moment(runs[-1]["at"]))
    if active and backfill is not None:
        done, backfill = _backfilled(row, timing, live or 0)
        runs = done + runs
    if not runs and backfill == row["backfill"]:
        return None
    return {
        "name": row["name"],
        "revision": row["revision"],
        "next": None if upcoming is None else upcoming.isoformat(),
        "instants": runs,
        "asked": row["asked"],
        "backfill": backfill,
    }


def timing_of(row: Row) -> Timing:
    """Return when a schedule is due. Raises ValueError for an invalid time."""
    options = row["options"]
    limits = [moment(options[name]) if options.get(name) else None for name in ("starts_at", "ends_at")]
    return Timing(row["cron"], row["every"], row["tz"], *limits)


def moment(text: str) -> datetime:
    """Return a timestamp of the database's JSON, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _due(row: Row, timing: Timing, first: datetime, now: datetime) -> list[Run]:
    """Return the decisions for all instants from `first` to `now`, in order: at least one."""
    options = row["options"]
    policy, most = options.get("misfire", "one"), options.get("misfire_most", 100)
    often = math.ceil(LATE / (timing.every or LATE))
    count, last = timing.between(first, now, most + often + 3)
    late = [at for at in last if at < now - timedelta(seconds=LATE)]
    on_time = last[len(late) :]
    missed = count - len(on_time)
    again: list[datetime] = []
    if policy == "all":
        oldest = now - timedelta(seconds=options.get("misfire_within", _DAY))
        again = [at for at in late if at >= oldest][-most:]
    elif policy == "one" and not on_time:
        again = late[-1:]
    missed -= len(again)
    runs: list[Run] = []
    if missed:
        end = late[len(late) - len(again) - 1]
        runs.append({"at": end.isoformat(), "since": first.isoformat(), "decided": "missed", "missed": missed - 1})
    previous = None if row["last_at"] is None else moment(row["last_at"])
    for at in again + on_time:
        # One run stands for what was missed before it.
        runs.append(_run(row, timing, at, "ran", missed=missed if policy == "one" else 0, previous=previous))
        missed, previous = 0, at
    return runs


def _backfilled(row: Row, timing: Timing, live: int) -> tuple[list[Run], dict[str, Any] | None]:
    """Return the next runs of a backfill, and what is left of it."""
    left = row["backfill"]
    start, end = moment(left["from"]), moment(left["to"])
    room = min(SLICE, left["parallel"] - live)
    if room <= 0:
        return [], left
    instants = list(islice(takewhile(lambda at: at <= end, timing.after(start - _MICROSECOND)), room))
    runs = [_run(row, timing, at, "backfilled") for at in instants]
    if len(instants) < room:
        return runs, None
    return runs, left | {"from": (instants[-1] + _MICROSECOND).isoformat()}


def _run(
    row: Row, timing: Timing, at: datetime, decided: str, *, missed: int = 0, previous: datetime | None = None
) -> Run:
    options, name = row["options"], row["name"]
    # Neither a user who asks for a run nor a backfill waits for the jitter.
    delay = _jitter(name, at, options.get("jitter", 0.0)) if decided == "ran" else 0.0
    expires = None
    if decided != "backfilled" and options.get("good_for"):
        expires = (at + timedelta(seconds=options["good_for"])).isoformat()
    instant = Instant(name, at.astimezone(timing.zone), (previous or at).astimezone(timing.zone), missed)
    return {
        "at": at.isoformat(),
        "decided": decided,
        "missed": missed,
        "run_at": (at + timedelta(seconds=delay)).isoformat(),
        "expires_at": expires,
        "payload": fill(row["payload"], instant),
    }


def _jitter(name: str, at: datetime, most: float) -> float:
    """Return a delay in seconds below `most`, the same on each host."""
    digest = hashlib.sha256(f"{name}\0{at.isoformat()}".encode()).digest()
    return most * int.from_bytes(digest[:8], "big") / 2**64
