"""Commands that show jobs: `jobs`, `job ID`, `wait ID`. They change none."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._values.encryption import decrypt, open_text
from jobherd.handlers._values.keys import KeyMissingError
from jobherd.handlers._values.payload import PayloadError
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import LARGEST_ID, Command, add_job_ids, job_id, job_ids, span
from jobherd.supervisor.cli.console import Column, paint, plain, plain_lines, show_moment, show_span
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.kinds import suggest_kind

if TYPE_CHECKING:
    from datetime import datetime

    from jobherd.supervisor.cli.database import Session

STATES: Final = ("ready", "scheduled", "retrying", "running", "completed", "failed", "cancelled", "expired")
OVER: Final = ("completed", "failed", "cancelled", "expired")
FARTHEST: Final = 50_000
"""Most rows of each table that a filtered listing reads.

Without it a listing could read 10 million jobs of the history.
"""
NOWHERE: Final[dict[str, Any]] = {"state": "unknown", "error_code": None, "error": None}
"""The values shown for a job that does not exist."""
SILENCE: Final = 5.0
"""Seconds within which the database must answer during `wait`: its statements find jobs by ID."""
BACKSTOP = 1.0
"""Seconds after which `wait` queries without a notification; also the pause between reconnects."""


def states(text: str) -> list[str]:
    """Parse a list of states, for argparse."""
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in STATES:
            message = f"{name[:40]!r} is not a state: one of {', '.join(STATES)}"
            raise argparse.ArgumentTypeError(message)
    return names


# -- jobs


def _jobs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", type=states, action="extend", metavar="STATE", help=f"only these: {', '.join(STATES)}"
    )
    parser.add_argument("--kind", metavar="KIND", help="only jobs of this kind")
    parser.add_argument("--queue", metavar="QUEUE", help="only jobs of this queue")
    parser.add_argument("--tenant", metavar="TENANT", help="only jobs of this tenant")
    parser.add_argument("--code", metavar="CODE", help="only jobs whose last error has this code")
    parser.add_argument(
        "--limit", type=_limit, default=50, metavar="N", help="how many at most, 1 to 10000 (default 50)"
    )
    parser.add_argument(
        "--before", type=job_id, default=LARGEST_ID, metavar="ID", help="the page after the one that ended with ID"
    )


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 10_000:
        message = f"{text[:40]!r} is not a whole number from 1 to 10000"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _jobs(arguments: argparse.Namespace) -> int:
    wanted = {name: getattr(arguments, name) for name in ("kind", "queue", "tenant", "code")} | {
        "states": arguments.state
    }
    filtered = any(value is not None for value in wanted.values())
    scan = max(FARTHEST, arguments.limit) if filtered else arguments.limit
    with session(arguments) as at:
        rows = at.rows(
            "observe/list_jobs", wanted | {"limit": arguments.limit, "before": arguments.before, "scan": scan}
        )
        floor, jobs = rows[0]["floor"], [row for row in rows if row["id"] is not None]
        whole = at.rows("observe/show_jobs", {"ids": [job["id"] for job in jobs]}) if arguments.json else []
        if not jobs:
            suggest_kind(at, arguments.kind)
    if arguments.json:
        console.print_json([_document(row) for row in whole])
    elif jobs:
        console.print_table(
            _COLUMNS,
            [_line(job) for job in jobs],
            colours=[{1: console.STATE_COLOURS.get(job["state"], "")} for job in jobs],
        )
    if len(jobs) == arguments.limit:
        if not arguments.json:
            console.complain(f"there may be more: --before {jobs[-1]['id']}")
    elif filtered and floor:
        console.complain(f"looked no further back than job {floor}; go on with --before {floor}")
    elif not jobs and not arguments.json:
        console.complain("no jobs" + (" like that" if filtered or arguments.before != LARGEST_ID else ""))
    return ExitCode.DONE


_COLUMNS: Final = (
    Column("ID", right=True), Column("STATE"), Column("KIND", least=12), Column("QUEUE", least=7),
    Column("TRY", right=True),
    Column("WHEN", right=True), Column("NOTE", least=4),
)  # fmt: skip


def _line(job: dict[str, Any]) -> tuple[object, ...]:
    tries = f"{job['attempts']}/{job['max_attempts']}"
    return (job["id"], job["state"], job["kind"], job["queue"], tries, _when(job), _why(job))


def _why(job: dict[str, Any]) -> str:
    """Return the last error, with its code."""
    return ": ".join(str(part) for part in (job["error_code"], job["error"]) if part)


def _when(job: dict[str, Any]) -> str:
    now = job["asked_at"]
    match job["state"]:
        case "running":
            return "for " + _since(job["started_at"], now)
        case "completed" | "failed" | "cancelled" | "expired":
            return _since(job["finished_at"], now) + " ago"
        case _ if job["run_at"] > now:
            return "in " + _since(now, job["run_at"])
        case _:
            return "waits " + _since(job["run_at"], now)


def _since(start: datetime, end: datetime) -> str:
    return show_span((end - start).total_seconds())


def _document(row: dict[str, Any]) -> dict[str, Any]:
    """Return a job as `--json` shows it: the columns of the view `jobherd.jobs`."""
    return {name: value for name, value in row.items() if name != "asked_at"}


# -- job


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", type=job_id, metavar="ID", help="the job's id")
    parser.add_argument(
        "--decrypt",
        action="store_true",
        help="show what is encrypted, with the keys of JOBHERD_KEYS or JOBHERD_KEYS_FILE",
    )


def _job(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        rows = at.rows("observe/show_jobs", {"ids": [arguments.id]})
        logs = at.rows("observe/show_logs", {"id": arguments.id})
    if not rows:
        raise CommandError(f"there is no job {arguments.id}: it never was, or its time in the history is over")
    if arguments.decrypt:
        rows, logs = [_decrypted(rows[0])], [_decrypted_log(log, rows[0]) for log in logs]
    if arguments.json:
        console.print_json(_document(rows[0]) | {"logs": logs})
    else:
        _page(rows[0])
        for log in logs:
            _print_log(log)
    return ExitCode.DONE


def _decrypted(row: dict[str, Any]) -> dict[str, Any]:
    """Return a job's row with its encrypted parts decrypted."""
    try:
        parts = {
            name: orjson.loads(row[name].encode()) for name in ("payload", "result", "history") if row[name] is not None
        }
        opened = decrypt(row | parts)
    except (KeyMissingError, PayloadError, orjson.JSONDecodeError) as problem:
        raise CommandError(f"job {row['id']} cannot be decrypted: {problem}", ExitCode.WRONG) from None
    return opened | {name: console.JsonText(orjson.dumps(opened[name]).decode()) for name in parts}


def _decrypted_log(log: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return what an attempt printed, with its encrypted parts decrypted."""
    try:
        text = open_text(log["output"], "log", row["kind"], row["id"])
    except (KeyMissingError, PayloadError) as problem:
        raise CommandError(f"the log of job {row['id']} cannot be decrypted: {problem}", ExitCode.WRONG) from None
    if text is None or text == log["output"]:
        return log
    told = orjson.loads(text)
    entries = console.JsonText(orjson.dumps(told["entries"]).decode()) if told.get("entries") else None
    return log | {"output": told.get("output", ""), "entries": entries}


def _page(job: dict[str, Any]) -> None:
    state = paint(job["state"], console.STATE_COLOURS.get(job["state"], ""))
    name = paint(f"job {job['id']}", "bold")
    print(f"{name}  {plain(job['kind'])}  {state}  {_when(job)}\n")
    facts: list[tuple[str, object]] = [
        ("queue", f"{job['queue']}, priority {job['priority']}"),
        (
            "attempts",
            f"{job['attempts']} of {job['max_attempts']}" + (f", {job['crashes']} crashed" if job["crashes"] else ""),
        ),
        ("created", show_moment(job["created_at"])),
        ("run at", show_moment(job["run_at"])),
    ]
    if job["started_at"]:
        facts.append(("started", show_moment(job["started_at"])))
    if job["finished_at"]:
        ran = f", ran for {_since(job['started_at'], job['finished_at'])}" if job["started_at"] else ""
        facts.append(("finished", show_moment(job["finished_at"]) + ran))
    facts += [("expires", show_moment(job["expires_at"]))] if job["expires_at"] else []
    facts += [("timeout", show_span(job["timeout"]))] if job["timeout"] else []
    facts += [("ran on" if job["finished_at"] else "runs on", job["ran_on"])] if job["ran_on"] else []
    facts += [(name, job[name]) for name in ("tenant", "webhook", "traceparent") if job[name] is not None]
    facts += [("parent", f"job {job['parent_id']}")] if job["parent_id"] is not None else []
    facts += [("bytes", job["payload_bytes"])] if job["payload_bytes"] is not None else []
    facts += [(name, job[name]) for name in ("progress", "payload", "result") if job[name] is not None]
    facts += [("error", _why(job))] if job["error"] else []
    for name, value in facts:
        print(f"{paint(f'{name:<11}', 'dim')} {plain(value)}")
    try:
        history: list[dict[str, Any]] = orjson.loads(job["history"].encode())
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        print(f"\nhistory     {plain(job['history'])}")  # show what can be shown
        return
    for attempt in history:
        _print_attempt(attempt)


def _print_attempt(attempt: dict[str, Any]) -> None:
    outcome = str(attempt.get("outcome", "?"))
    code = f"  {attempt['error_code']}" if attempt.get("error_code") else ""
    where = f"  on {attempt['ran_on']}" if attempt.get("ran_on") else ""
    colour = console.STATE_COLOURS.get(outcome, "yellow")
    start, end = _moment(attempt.get("started_at")), _moment(attempt.get("finished_at"))
    ran = f"  ran for {_since(start, end)}" if start and end else ""
    print(
        f"\n{paint('attempt', 'dim')} {attempt.get('attempt', '?')}  "
        f"{paint(plain(outcome), colour)}{plain(code)}{plain(where)}"
    )
    print(f"  {show_moment(start or end)}{ran}")
    error, post_mortem = attempt.get("error"), attempt.get("post_mortem")
    why = post_mortem.get("sentence") if isinstance(post_mortem, dict) else post_mortem
    # For a dead process the sentence is the error.
    for text in dict.fromkeys(text for text in (error, why) if text):
        print(f"  {plain(text)}")
    if usage := attempt.get("usage"):
        print(f"  used {plain(_used(usage))}")
    for line in plain_lines(attempt.get("traceback") or "").splitlines():
        print(paint(f"    {line}", "dim"))


def _print_log(log: dict[str, Any]) -> None:
    print(f"\n{paint('log', 'dim')} of attempt {log['attempt']}")
    for entry in orjson.loads(log["entries"].encode()) if log["entries"] else []:
        print(f"  {plain(_said(entry))}")
        for line in plain_lines(str(entry.get("out", "")) if isinstance(entry, dict) else "").splitlines():
            print(paint(f"    {line}", "dim"))
    for line in plain_lines(log["output"]).splitlines():
        print(f"  {line}")


def _said(entry: object) -> str:
    """Return an entry of job.log(key, ...) in words; show an unknown entry unchanged."""
    if not isinstance(entry, dict):
        return str(entry)
    words = [f"[{entry.get('key', '?')}]"]
    words += [str(entry["command"])] if "command" in entry else []
    words += [f"exit {entry['exit_code']}"] if "exit_code" in entry else []
    words += [f"in {show_span(entry['duration'])}"] if isinstance(entry.get("duration"), int | float) else []
    return " ".join(words)


def _used(usage: object) -> str:
    """Return what an attempt used, in words; show an unknown format unchanged."""
    if not isinstance(usage, dict) or not all(isinstance(value, int | float) for value in usage.values()):
        return str(usage)
    words = {name: f"{name} {value}" for name, value in usage.items()}
    if "max_rss" in usage:
        words["max_rss"] = f"{usage['max_rss'] / 2**20:,.0f} MiB at most"
    if "cpu_user" in usage and "cpu_system" in usage:
        words["cpu_user"] = f"{show_span(usage['cpu_user'] + usage['cpu_system'])} of processor"
        del words["cpu_system"]
    return ", ".join(words.values())


def _moment(text: object) -> datetime | None:
    from datetime import datetime as moment  # noqa: PLC0415  # the name is taken by the type above

    try:
        return moment.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


# -- wait


def _wait_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_ids(parser)
    parser.add_argument(
        "--timeout", type=span, metavar="TIME", help="give up after this, with exit code 124 (default: never)"
    )


def _wait(arguments: argparse.Namespace) -> int:
    from jobherd.handlers._enqueue.answer_deadline import answered  # noqa: PLC0415  # only `wait` needs it

    ids = job_ids(arguments.ids)
    until = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    found: dict[int, dict[str, Any]] = {}
    printed: set[int] = set()
    away = False
    while True:
        try:
            with session(arguments) as at:
                away = False
                with answered(at.connection, _within(until)):
                    if not (over := _look(at, ids, found, printed, {}, quiet=arguments.json)):
                        # Otherwise a shared backend would listen.
                        if at.row("session/show_backend")["backend"] == at.connection.info.backend_pid:
                            # In this order: see sql/schema/04_wake.sql.
                            for name in ("wake/listen_finished", "wake/announce_wait", "wake/wait_for_settlements"):
                                at.send(name, {"ids": ids})
                        over = _look(at, ids, found, printed, {}, quiet=arguments.json)
                while not over:
                    left = BACKSTOP if until is None else until - time.monotonic()
                    if left <= 0:
                        return _waited(arguments, ids, found, timed_out=True)
                    told = _hear(
                        at, {number for number in ids if found[number]["state"] not in OVER}, min(left, BACKSTOP)
                    )
                    with answered(at.connection, _within(until)):
                        over = _look(at, ids, found, printed, told, quiet=arguments.json)
                return _waited(arguments, ids, found, timed_out=False)
        except CommandError as problem:
            # Once the database has answered, an outage does not end the command: it keeps waiting.
            if (
                problem.code is not ExitCode.NO_DATABASE
                or not found
                or (until is not None and time.monotonic() >= until)
            ):
                raise
            if not away:
                console.complain(f"{problem}; waiting for it")
            away = True
            time.sleep(BACKSTOP)


def _within(until: float | None) -> float:
    """Return the seconds within which the database must answer the next statement."""
    return SILENCE if until is None else min(SILENCE, max(0.0, until - time.monotonic()) + BACKSTOP)


def _hear(at: Session, ids: set[int], seconds: float) -> dict[int, str]:
    """Wait until the database notifies that one of these jobs has finished, at most `seconds`.

    Return the states in the notifications.
    """
    from jobherd.handlers._enqueue.waiting import ends  # noqa: PLC0415  # only `wait` needs it

    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        told: dict[int, str] = {}
        for note in at.connection.notifies(timeout=left, stop_after=1):
            told |= ends(note.payload, at.schema)
        if told := {number: state for number, state in told.items() if number in ids}:
            return told
    return {}


def _look(
    at: Session,
    ids: list[int],
    found: dict[int, dict[str, Any]],
    printed: set[int],
    told: dict[int, str],
    *,
    quiet: bool,
) -> bool:
    """Query once, print the jobs that have finished since, and return whether all have.

    Args:
        at: the database session.
        ids: all jobs to wait for.
        found: the last known row of each; updated.
        printed: jobs that were printed already; updated.
        told: states of finished jobs from notifications, also if no row of the job is kept.
        quiet: print nothing.
    """
    rest = [number for number in ids if found.get(number, NOWHERE)["state"] not in OVER]
    seen = {row["id"]: row for row in at.rows("observe/list_states", {"ids": rest})}
    for number in rest:
        found[number] = seen.get(number) or NOWHERE | ({"state": told[number]} if number in told else {})
        if found[number]["state"] in OVER and not quiet and number not in printed:
            printed.add(number)
            print(_ended(number, found[number]), flush=True)
    return all(found[number]["state"] in {*OVER, "unknown"} for number in ids)


def _ended(number: int, job: dict[str, Any]) -> str:
    """Return the line that shows how a job ended: ID, state, and the error of a failed job.

    The error is cut to the width of the terminal.
    """
    said = f"{number} {job['state']}"
    why = _why(job) if job["state"] == "failed" else ""
    text = f"  {console.cut(plain(why), max(0, console.width() - len(said) - 2))}" if why else ""
    return f"{number} {paint(job['state'], console.STATE_COLOURS[job['state']])}{text}"


def _waited(arguments: argparse.Namespace, ids: list[int], found: dict[int, dict[str, Any]], *, timed_out: bool) -> int:
    if arguments.json:
        console.print_json([{"id": number, **{name: found[number][name] for name in NOWHERE}} for number in ids])
    missing = [str(number) for number in ids if found[number]["state"] == "unknown"]
    if missing:
        console.complain(f"there is no job {', '.join(missing)}: it never was, or nothing is kept of it")
    open_ones = [str(number) for number in ids if found[number]["state"] not in {*OVER, "unknown"}]
    if timed_out:
        console.complain(f"still not over: {', '.join(open_ones)}")
        return ExitCode.TIMEOUT
    return ExitCode.DONE if all(found[number]["state"] == "completed" for number in ids) else ExitCode.WRONG


COMMANDS: Final = (
    Command("jobs", "list jobs, newest first", "  jobherd jobs --state failed,retrying --kind mail:receipt",
        _jobs_arguments, _jobs, lists=True),
    Command("job", "show one job, with every attempt", "  jobherd job 42 --json | jq .history",
        _job_arguments, _job, lists=True),
    Command(
        "wait",
        "wait until jobs have finished",
        "  jobherd wait $(jobherd enqueue mail:receipt '{\"order_id\": 7}') --timeout 1m",
        _wait_arguments,
        _wait,
        about="Wait until jobs have finished, and print how each ended. The exit code is 0 if all completed, 1 if "
        "one failed, was cancelled, "
        "expired\nor does not exist, and 124 when the time was up.",
        lists=True,
    ),
)  # fmt: skip
