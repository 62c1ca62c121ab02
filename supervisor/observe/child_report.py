"""Describes one child for the fleet report: what it is, what it does, what it uses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from jobherd.supervisor.observe.process_use import Look, channel, share
from jobherd.supervisor.policy.slot import State
from jobherd.workers.ipc.current_work import Phase
from jobherd.workers.system import procfs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.supervisor.policy.child_exit import End
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.workers.ipc.current_work import CurrentWork
    from jobherd.workers.ipc.status_board import StatusBoard

LONGEST_TEXT: Final = 500
"""Characters of a sentence or note."""


def describe_child(
    slot: Slot, board: StatusBoard, before: Look | None, seen: Look | None, now: float
) -> dict[str, Any]:
    """Return the part of the fleet report about a slot.

    Args:
        slot: the slot.
        board: its status board.
        before: the look at its process for the last report.
        seen: the current look at it.
        now: the current time.
    """
    found: dict[str, Any] = {
        "slot": slot.number,
        "name": slot.name,
        "kind": slot.kind.name,
        "queue": slot.process.reserved or None,
        "restarts": slot.restarts,
        "last_end": None if slot.last_end is None else describe_end(slot.last_end, now),
        "since": now - slot.since,
    }
    if not slot.alive:
        return found | {"state": "resting", "left": slot.rest_until - now}
    record, cpu = board.now(), share(before, seen)
    state, waits_on = _state(slot, board, record, seen, cpu)
    found |= {
        "pid": slot.process.pid,
        "state": state,
        "waits_on": waits_on,
        "up": now - slot.process.forked_at,
        "rss": seen.rss if seen is not None else None,
        "cpu": cpu,
        "cpu_seconds": seen.ticks / procfs.TICKS_PER_SECOND if seen is not None else None,
        "jobs": board.jobs_started - slot.process.started_before,
        "held": board.held,
    }
    return found if record is None else found | _work(board, record, now)


def describe_end(end: End, now: float) -> dict[str, Any]:
    """Return how a child ended."""
    return {"cause": end.cause, "sentence": end.sentence[:LONGEST_TEXT], "ago": now - end.at}


def _work(board: StatusBoard, record: CurrentWork, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {"phase": record.phase.name.lower()}
    if not record.job or not record.runs:
        return found
    policy = board.tally.policy(record.kind)
    others = len(board.company(record)) if record.phase is Phase.TOGETHER else 0
    return found | {
        "record" if policy.table else "job": record.job,
        "job_kind": policy.name,
        "together": others or None,
        "attempt": record.attempts,
        "most_attempts": record.max_attempts,
        "elapsed": now - record.started,
        "left": record.deadline - now,  # infinite without a timeout, which becomes null
        "progress": _progress(board.progress()) if record.phase is Phase.RUNNING else None,
    }


def _state(
    slot: Slot, board: StatusBoard, record: CurrentWork | None, seen: Look | None, cpu: float | None
) -> tuple[str, str | None]:
    """Return the state, and what it waits for.

    A single look may fall into a pause of a busy process, so half a core also counts as computing.
    """
    if slot.state in (State.BOOTING, State.LEAVING):
        return slot.state.value, None
    if slot.process.stopped_at:
        return "stopped", None
    computes = seen is not None and (seen.letter == "R" or (cpu or 0.0) >= 0.5)
    if slot.kind.works and (board.idle or record is None or record.phase is Phase.IDLE):
        return "idle", None
    if computes:
        return "computing", None
    if not slot.kind.works:
        return "idle", None
    if record is not None and record.phase in (Phase.CLAIMING, Phase.SETTLING):
        return "waiting", "the database"
    return "waiting", "a disk" if seen is not None and seen.letter == "D" else channel(slot.process.pid)


def _progress(text: bytes) -> Mapping[str, Any] | None:
    """Return a handler's progress, or None if the data, which a child has written, is not valid."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fraction, note = found.get("fraction"), found.get("note")
    return {
        "fraction": fraction if isinstance(fraction, int | float) and 0 <= fraction <= 1 else None,
        "note": note[:LONGEST_TEXT] if isinstance(note, str) else None,
    }
