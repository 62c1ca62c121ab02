"""`job ID`: shows one job with every attempt. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._values.encryption import decrypt, open_text
from jobherd.handlers._values.json_text import JsonText, job_document
from jobherd.handlers._values.keys import KeyMissingError
from jobherd.handlers._values.payload import PayloadError
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, job_id
from jobherd.supervisor.cli.console import paint, plain, plain_lines, show_moment, show_span
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.job_text import holder_of, key_of, reason_of, since, when
from jobherd.workers.inspect.phrases import size

if TYPE_CHECKING:
    import argparse
    from datetime import datetime


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
        keys = at.rows("observe/show_key", {"id": arguments.id})
    if not rows:
        raise CommandError(
            f"job {arguments.id} not found: it never existed, it was deleted, or its retention has ended"
        )
    if arguments.decrypt:
        rows, logs = [_decrypted(rows[0])], [_decrypted_log(log, rows[0]) for log in logs]
    if arguments.json:
        console.print_json(job_document(rows[0], logs, keys[0] if keys else None))
    else:
        _page(rows[0], keys[0] if keys else None)
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
    return opened | {name: JsonText(orjson.dumps(opened[name]).decode()) for name in parts}


def _decrypted_log(log: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return what an attempt printed, with its encrypted parts decrypted."""
    try:
        text = open_text(log["output"], "log", row["kind"], row["id"])
    except (KeyMissingError, PayloadError) as problem:
        raise CommandError(f"the log of job {row['id']} cannot be decrypted: {problem}", ExitCode.WRONG) from None
    if text is None or text == log["output"]:
        return log
    told = orjson.loads(text)
    entries = JsonText(orjson.dumps(told["entries"]).decode()) if told.get("entries") else None
    return log | {"output": told.get("output", ""), "entries": entries}


def _page(job: dict[str, Any], key: dict[str, Any] | None) -> None:
    state = paint(job["state"], console.STATE_COLOURS.get(job["state"], ""))
    name = paint(f"job {job['id']}", "bold")
    print(f"{name}  {plain(job['kind'])}  {state}  {when(job)}\n")
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
        ran = f", ran for {since(job['started_at'], job['finished_at'])}" if job["started_at"] else ""
        facts.append(("finished", show_moment(job["finished_at"]) + ran))
    facts += [("expires", show_moment(job["expires_at"]))] if job["expires_at"] else []
    facts += [("timeout", show_span(job["timeout"]))] if job["timeout"] else []
    facts += [("ran on" if job["finished_at"] else "runs on", job["ran_on"])] if job["ran_on"] else []
    facts += [(name, job[name]) for name in ("tenant", "partition", "webhook", "traceparent") if job[name] is not None]
    facts += [("parent", f"job {job['parent_id']}")] if job["parent_id"] is not None else []
    facts += [("key", f"{key_of(key)}, {holder_of(key, job['id'])}")] if key is not None else []
    facts += [("bytes", job["payload_bytes"])] if job["payload_bytes"] is not None else []
    facts += [(name, job[name]) for name in ("progress", "payload", "result") if job[name] is not None]
    facts += [("error", reason_of(job))] if job["error"] else []
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
    ran = f"  ran for {since(start, end)}" if start and end else ""
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
        words["max_rss"] = f"{size(usage['max_rss'])} at most"
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


COMMANDS: Final = (
    Command(
        "job",
        "show one job, with every attempt",
        "  jobherd job 42 --json | jq .history",
        _job_arguments,
        _job,
        lists=True,
        spans="ids",
    ),
)
