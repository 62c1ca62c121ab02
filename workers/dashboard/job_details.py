"""Reads one job and prepares it for its page: redacted, and split into what the templates need.

The page of a bad job must work: `documents.py` and `job_attempts.py` accept any content. Must not send
anything to a browser or change anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.dashboard.documents import document, parsed, sendable
from jobherd.workers.dashboard.job_attempts import attempt_of, history_of, numbered
from jobherd.workers.dashboard.redaction import redact, redact_text
from jobherd.workers.dashboard.timeline import timeline
from jobherd.workers.inspect import explain as reasons
from jobherd.workers.inspect.phrases import moment_or_none

if TYPE_CHECKING:
    from datetime import datetime

    from jobherd.workers.dashboard.database import Database, Reading, Row
    from jobherd.workers.dashboard.redaction import Redactions
    from jobherd.workers.dashboard.timeline import Timeline

IN_FULL: Final = 20
"""Attempts that are shown in full; earlier ones get a line each."""
CHILDREN: Final = 50
"""Child jobs that are listed."""
STEPS: Final = 50
"""Durable steps that are listed."""
LONGEST: Final = 1e9
"""Seconds of a timeout whose end is shown."""
GENERATIONS: Final = 20
"""Ancestors that are listed."""


@dataclass(frozen=True, slots=True)
class Head:
    """The live part of the page: state and reasons, progress, and the timeline."""

    row: Row
    """As the database returned it."""
    job: Row
    """With its documents parsed, and without what is redacted."""
    now: list[Sentence]
    remedy: list[tuple[str, str]]
    """Commands and their purpose."""
    life: Timeline
    fraction: float | None
    note: str
    ends_at: datetime | None = None
    """When a running job reaches its timeout."""
    flow_ended: bool = False
    """Whether neither the job nor its flow completed."""


Sentence = list["str | datetime"]
"""Text with timestamps, which the browser writes in the viewer's time zone."""


async def head_of(database: Database | Reading, hidden: Redactions, number: int) -> Head | None:
    """Return the live part of a job, or None if the job does not exist. Raises as `Database.rows`."""
    row = await database.row("observe/explain_job", {"id": number, "most": reasons.MOST})
    if row is None:
        return None
    paths = (await hidden.read(database)).get(row["kind"], ())
    history = history_of(row, paths)
    progress = parsed(row["progress"])
    job = {
        **row,
        "history": history,
        "gates": parsed(row["gates"]),
        "waits_for": parsed(row["waits_for"]),
        "error": redact_text(row["error"], row["payload"], paths),
    }
    job["progress"] = progress if isinstance(progress, dict) else None
    explained = reasons.explain(job, history, _mark)
    fraction, note = (job["progress"] or {}).get("fraction"), (job["progress"] or {}).get("note", "")
    return Head(
        row=row,
        job=job,
        now=[_sentence(each) for each in explained.now],
        remedy=[
            (command.strip(), purpose.strip())
            for command, _, purpose in (each.partition("   ") for each in explained.remedy)
        ],
        life=timeline(job, history, job["asked_at"]),
        fraction=float(fraction) if isinstance(fraction, int | float) else None,
        note=note if isinstance(note, str) else "",
        ends_at=job["started_at"] + timedelta(seconds=job["timeout"])
        if job["state"] == "running" and job["started_at"] and job["timeout"] and job["timeout"] < LONGEST
        else None,
        flow_ended=reasons.ended_with_flow(job),
    )


async def trail_of(database: Database | Reading, hidden: Redactions, row: Row) -> dict[str, Any]:
    """Return a job's results and related jobs for its template.

    row: of observe/show_job, or one with the same columns. Raises as `Database.rows`.
    """
    given = {"id": row["id"]}
    logs = await database.rows("observe/show_logs", given)
    # Cost: to plan it takes longer than all else here, and most jobs have no parent job.
    has_parent = row["parent_id"] is not None
    ancestors = await database.rows("dashboard/list_ancestors", {**given, "most": GENERATIONS}) if has_parent else []
    key = await database.row("observe/show_key", given)
    steps = await database.rows("observe/show_steps", given)
    children = await database.rows("dashboard/list_child_jobs", {**given, "most": CHILDREN + 1})
    paths = (await hidden.read(database)).get(row["kind"], ())
    logged = {log["token"]: log for log in logs}
    attempts = numbered([attempt_of(each, logged.pop(each.get("token"), None)) for each in history_of(row, paths)])
    attempts.reverse()
    return {
        "job": row,
        "key": key,
        "result": document("result", redact(row["result"], paths)),
        "steps": [{**step, "result": document("step", redact(step["result"], paths))} for step in steps[:STEPS]],
        "more_steps": len(steps) > STEPS,
        "runs": max((one.run for one in attempts), default=1),
        "attempts": attempts[:IN_FULL],
        "earlier": attempts[IN_FULL:],
        "ancestors": ancestors,
        "children": children[:CHILDREN],
        "more_children": len(children) > CHILDREN,
    }


def _mark(moment: datetime) -> str:
    """Return a marked timestamp, to find it again in a sentence.

    No text of the database contains a NUL.
    """
    return f"\0{moment.isoformat()}\0"


def _sentence(text: str) -> Sentence:
    parts = text.split("\0")
    found: Sentence = [
        moment_or_none(part) or part if place % 2 else sendable(part) for place, part in enumerate(parts)
    ]
    if isinstance(found[0], str):
        found[0] = found[0][:1].upper() + found[0][1:]
    if not text.endswith((".", "!", "?")):
        found.append(".")
    return found
