"""Formats one job with every attempt in lines, for `jobherd job` and `jobherd top`.

It queries nothing. Control characters in text from jobs are made visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.console import paint, plain, plain_lines, show_moment, show_span
from jobherd.supervisor.cli.job_text import holder_of, key_of, reason_of, since, when
from jobherd.workers.inspect.phrases import moment_or_none, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def lines_of(job: dict[str, Any], key: dict[str, Any] | None, logs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines that show a job.

    Args:
        job: its row of `observe/show_jobs`, with JSON as text.
        key: its row of `observe/show_key`, if it has one.
        logs: its rows of `observe/show_logs`.
    """
    yield from _facts(job, key)
    for log in logs:
        yield from _log(log)


def _facts(job: dict[str, Any], key: dict[str, Any] | None) -> Iterator[str]:
    state = paint(job["state"], console.STATE_COLOURS.get(job["state"], ""))
    name = paint(f"job {job['id']}", "bold")
    yield f"{name}  {plain(job['kind'])}  {state}  {when(job)}"
    yield ""
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
        yield f"{paint(f'{name:<11}', 'dim')} {plain(value)}"
    try:
        history: list[dict[str, Any]] = orjson.loads(job["history"].encode())
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        yield ""
        yield f"history     {plain(job['history'])}"  # show what can be shown
        return
    for attempt in history:
        yield from _attempt(attempt)


def _attempt(attempt: dict[str, Any]) -> Iterator[str]:
    outcome = str(attempt.get("outcome", "?"))
    code = f"  {attempt['error_code']}" if attempt.get("error_code") else ""
    where = f"  on {attempt['ran_on']}" if attempt.get("ran_on") else ""
    colour = console.STATE_COLOURS.get(outcome, "yellow")
    start, end = moment_or_none(attempt.get("started_at")), moment_or_none(attempt.get("finished_at"))
    ran = f"  ran for {since(start, end)}" if start and end else ""
    yield ""
    yield (
        f"{paint('attempt', 'dim')} {attempt.get('attempt', '?')}  "
        f"{paint(plain(outcome), colour)}{plain(code)}{plain(where)}"
    )
    yield f"  {show_moment(start or end)}{ran}"
    error, post_mortem = attempt.get("error"), attempt.get("post_mortem")
    why = post_mortem.get("sentence") if isinstance(post_mortem, dict) else post_mortem
    # For a dead process the sentence is the error.
    for text in dict.fromkeys(text for text in (error, why) if text):
        yield f"  {plain(text)}"
    if usage := attempt.get("usage"):
        yield f"  used {plain(_used(usage))}"
    for line in plain_lines(attempt.get("traceback") or "").splitlines():
        yield paint(f"    {line}", "dim")


def _log(log: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{paint('log', 'dim')} of attempt {log['attempt']}"
    for entry in orjson.loads(log["entries"].encode()) if log["entries"] else []:
        yield f"  {plain(_said(entry))}"
        for line in plain_lines(str(entry.get("out", "")) if isinstance(entry, dict) else "").splitlines():
            yield paint(f"    {line}", "dim")
    for line in plain_lines(log["output"]).splitlines():
        yield f"  {line}"


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
