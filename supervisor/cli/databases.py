"""Runs one command on several databases: of a repeated `--dsn`, or of JOBHERD_DSNS.

A listing runs once for each database. A command about jobs runs on the databases that their ids
name (`handlers/_enqueue/shards.py`). A database that does not answer is reported, and the others
are still shown. The live screen of `top` and the dashboard get all addresses.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from psycopg.conninfo import conninfo_to_dict

from jobherd.handlers._enqueue.shards import shard_of
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import CONNECTION, given_flags, job_ids
from jobherd.supervisor.cli.database import Session, connect, explained, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.supervisor.cli.command import Command

VARIABLE: Final = "JOBHERD_DSNS"
"""Addresses separated by white space, for commands without `--dsn`."""


def run(command: Command, arguments: argparse.Namespace) -> int:
    """Run a command on each database that is named, or on the usual one."""
    given = getattr(arguments, "dsn", None) or os.environ.get(VARIABLE, "").split()
    addresses = list(dict.fromkeys(given))
    if command.spans == "together" and not getattr(arguments, "once", False):
        arguments.addresses, addresses = addresses, addresses[:1]
    if len(addresses) > 1:
        return _run_each(command, arguments, {address: name_of(arguments, address) for address in addresses})
    if addresses:
        arguments.dsn = addresses[0]
    return command.run(arguments)


def _run_each(command: Command, arguments: argparse.Namespace, names: dict[str, str]) -> int:
    """Run a command on databases, by address with the names that are printed. Return the first code that is not 0."""
    if (action := getattr(arguments, "action", None)) is not None:
        raise CommandError(f"{command.name} {action} is for one database: give one --dsn", ExitCode.USAGE)
    is_json = getattr(arguments, "json", False)
    codes: list[int] = []
    answers: list[dict[str, object]] = []
    calls = _calls(arguments, names, codes) if command.spans == "ids" else ((address, {}) for address in names)
    for address, more in calls:
        if not is_json:
            print(("\n" if codes else "") + console.paint(names[address], "bold"), flush=True)
        try:
            with console.collected_json() as documents:
                codes.append(int(command.run(argparse.Namespace(**vars(arguments) | more | {"dsn": address}))))
            answers += [{"database": names[address], "answer": document} for document in documents]
        except CommandError as problem:
            _failed(names[address], problem, codes)
    if is_json:
        console.print_json(answers)
    return next((code for code in codes if code), ExitCode.DONE)


def _calls(
    arguments: argparse.Namespace, names: dict[str, str], codes: list[int]
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each database that has some of the jobs, with the arguments that name them."""
    is_list = hasattr(arguments, "ids")
    left = job_ids(arguments.ids) if is_list else [arguments.id]
    away = False
    for address, name in names.items():
        try:
            with explained(), connect(address, name="shard") as connection:
                schema = load_settings(given_flags(arguments) | {"dsn": address}, only=CONNECTION).schema
                shard = Session(connection, schema).row("observe/show_shard")["shard"]
        except CommandError as problem:
            away = True
            _failed(name, problem, codes)
            continue
        if mine := [number for number in left if shard_of(number) == shard]:
            left = [number for number in left if number not in mine]
            yield address, {"ids": [str(number) for number in mine]} if is_list else {"id": mine[0]}
    if left:
        where = "may be in a database that does not answer" if away else "is in none of these databases"
        console.complain(f"job {left[0]} is in shard {shard_of(left[0])}, which {where}")
        codes.append(ExitCode.WRONG)


def _failed(name: str, problem: CommandError, codes: list[int]) -> None:
    console.complain(f"{name}: {problem}")
    codes.append(problem.code)


def name_of(arguments: argparse.Namespace, address: str) -> str:
    """Return what is printed of an address, without user and password. Raises CommandError if it is invalid."""
    settings = load_settings(given_flags(arguments) | {"dsn": address}, only=CONNECTION)
    given = conninfo_to_dict(settings.dsn or "")
    host = given.get("host") or given.get("hostaddr") or "localhost"
    port = f":{given['port']}" if given.get("port") else ""
    return console.plain(f"{host}{port}/{given.get('dbname') or ''}")
