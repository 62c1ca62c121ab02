"""`steps ID`: lists the durable steps that a job has recorded. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._values.encryption import cover, open_document
from jobherd.handlers._values.json_output import JsonText
from jobherd.handlers._values.keys import KeyMissingError
from jobherd.handlers._values.payload import PayloadError
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, add_job_and_decrypt
from jobherd.supervisor.cli.console import Column, show_moment
from jobherd.supervisor.cli.database import session

if TYPE_CHECKING:
    import argparse

_COLUMNS: Final = (
    Column("STEP", least=12), Column("ATTEMPT", right=True), Column("VERSION", right=True), Column("AT"),
    Column("RESULT", least=10),
)  # fmt: skip


def _steps(arguments: argparse.Namespace) -> int:
    with session(arguments) as at:
        jobs = at.rows("observe/show_jobs", {"ids": [arguments.id]})
        steps = at.rows("observe/show_steps", {"id": arguments.id})
    if not jobs:
        raise CommandError(
            f"job {arguments.id} not found: it never existed, it was deleted, or its retention has ended"
        )
    if arguments.decrypt:
        steps = [_decrypted(step, jobs[0]) for step in steps]
    if arguments.json:
        console.print_json(
            [step | {"result": None if step["result"] is None else JsonText(step["result"])} for step in steps]
        )
    elif steps:
        console.print_table(_COLUMNS, [_line(step) for step in steps])
    else:
        console.complain(f"job {arguments.id} has recorded no step")
    return ExitCode.DONE


def _line(step: dict[str, Any]) -> tuple[object, ...]:
    result = "" if step["result"] is None else cover(step["result"])
    return (step["name"], step["attempt"], step["version"], show_moment(step["at"]), result)


def _decrypted(step: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    if step["result"] is None:
        return step
    try:
        found = open_document(orjson.loads(step["result"]), "step", job["kind"], job["id"], step["name"])
    except (KeyMissingError, PayloadError) as problem:
        message = f"step {step['name']!r} of job {job['id']} cannot be decrypted: {problem}"
        raise CommandError(message, ExitCode.WRONG) from None
    return step | {"result": orjson.dumps(found).decode()}


COMMANDS: Final = (
    Command(
        "steps",
        "list the durable steps that a job has recorded",
        "  jobherd steps 42 --json | jq '.[].name'",
        add_job_and_decrypt,
        _steps,
        lists=True,
    ),
)
