"""`job ID`: shows one job with every attempt. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._values.encryption import decrypt, open_text
from jobherd.handlers._values.json_output import JsonText, job_document
from jobherd.handlers._values.keys import KeyMissingError
from jobherd.handlers._values.payload import PayloadError
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, add_job_and_decrypt
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.job_page import lines_of

if TYPE_CHECKING:
    import argparse


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
        for line in lines_of(rows[0], keys[0] if keys else None, logs):
            print(line)
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
    document = orjson.loads(text)
    entries = JsonText(orjson.dumps(document["entries"]).decode()) if document.get("entries") else None
    return log | {"output": document.get("output", ""), "entries": entries}


COMMANDS: Final = (
    Command(
        "job",
        "show one job, with every attempt",
        "  jobherd job 42 --json | jq .history",
        add_job_and_decrypt,
        _job,
        lists=True,
        spans="ids",
    ),
)
