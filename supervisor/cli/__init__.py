"""Runs one command of the command line: chooses its family, parses the arguments, explains errors.

Each family is one module with a tuple `COMMANDS`. To add a family, write its module, add its name
and commands to `FAMILIES`, and its commands to `GROUPS` (`usage.py`), which orders the help. Only the
requested family is imported, because a script that enqueues jobs one by one pays for each start. An
expected error ends here as one sentence on standard error and an exit code (`codes.py`), never as a
traceback. Only `run`, `work` and `bench` start a supervisor, and only `dashboard` serves HTTP.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING

from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import HelpFormatter, add_common
from jobherd.supervisor.cli.usage import GroupedParser, Parser
from jobherd.supervisor.settings.sources import flag_of
from jobherd.supervisor.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.supervisor.cli.command import Command

FAMILIES = {
    "run": ("run",),
    "work": ("work",),
    "enqueue": ("enqueue",),
    "jobs": ("jobs",),
    "job": ("job",),
    "steps": ("steps",),
    "errors": ("errors",),
    "signals": ("signal",),
    "wait": ("wait",),
    "control": ("retry", "cancel", "delete", "reprioritize", "reschedule"),
    "purge": ("purge",),
    "queues": ("queues", "pause", "resume"),
    "limits": ("limit", "limits"),
    "keys": ("keys",),
    "flows": ("flows", "flow"),
    "fairness": ("fair",),
    "schedules": ("schedules", "schedule"),
    "fleet": ("fleet",),
    "status": ("status",),
    "top": ("top",),
    "dashboard": ("dashboard",),
    "migrate": ("migrate",),
    "dsn": ("dsn", "psql"),
    "why": ("why",),
    "profile": ("stack", "profile"),
    "check": ("check",),
    "doctor": ("doctor",),
    "bench": ("bench",),
    "forge": ("forge",),
}
"""The commands of each family."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a write: a full disk, a quota, a file size limit, and a terminal that is gone."""

ABOUT = "Background jobs on PostgreSQL, each worker a separate process."
EXAMPLES = """\
examples:
  jobherd run --handlers ./my_handlers --workers 4
  jobherd enqueue mail:receipt '{"order_id": 7}'
  jobherd jobs --state failed
  jobherd job 42

exit codes: 0 done, 1 problem found, 2 usage, 69 no database, 78 configuration,
124 timeout of wait, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the arguments after the program's name; default: those of the process.

    >>> main(["--version"])  # doctest: +SKIP
    0
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 must not stop a listing
    try:
        code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        _write_no_more()  # the reader of the output is gone (`jobherd jobs | head`)
        return ExitCode.BROKEN_PIPE
    except OSError as problem:
        if problem.errno not in _NO_ROOM:
            raise
        _write_no_more()
        print(f"jobherd: {problem.filename or 'the output'} cannot be written: {problem.strerror}", file=sys.stderr)
        return ExitCode.WRONG
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code


def _write_no_more() -> None:
    """Discard unwritten output.

    Otherwise Python would try to write it again at exit, and report the error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def commands(word: str | None = None) -> dict[str, Command]:
    """Return commands by name.

    Args:
        word: the first word of the command line. If it is a command, only the commands of its
            family are returned; otherwise every command.
    """
    if word == "--version":
        return {}
    asked = [family for family, words in FAMILIES.items() if word in words]
    names = [f"{__name__}.{family}" for family in asked or FAMILIES]
    return {command.name: command for name in names for command in importlib.import_module(name).COMMANDS}


def parser_of(known: Mapping[str, Command]) -> GroupedParser:
    """Return the parser of a command line with these commands."""
    parser = GroupedParser(prog="jobherd", description=ABOUT, epilog=EXAMPLES, allow_abbrev=False)
    parser.lines = {command.name: command.help for command in known.values()}
    parser.add_argument("--version", action="version", version=f"jobherd {VERSION}")
    branches = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for command in known.values():
        branch = branches.add_parser(
            command.name,
            help=command.help,
            description=command.about or command.help,
            epilog=f"example:\n{command.example}",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        add_common(branch, command)
        command.arguments(branch)
        branch.set_defaults(parser=branch)
    return parser


def _run(argv: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    if given[:1] == ["version"]:
        given = ["--version"]
    known = commands(given[0] if given else None)
    if given and given[0].startswith("--") and given[0] not in {"--help", "--version"}:
        flag = given[0].partition("=")[0]
        parser_of({}).error(f"{flag} is before the command: write it after the command")
    if given and given[0] in known and known[given[0]].passes_on:
        given = _split(given, known[given[0]])
    arguments, unknown = parser_of(known).parse_known_args(given)
    if unknown:
        arguments.parser.reject(unknown)
    command = known[arguments.command]
    try:
        if command.spans:
            from jobherd.supervisor.cli import databases  # noqa: PLC0415 - only with a database

            return int(databases.run(command, arguments))
        return int(command.run(arguments))
    except CommandError as problem:
        sys.stdout.flush()
        from jobherd.supervisor.cli.console import complain  # noqa: PLC0415 - `--help` starts faster

        complain(str(problem))
        return problem.code


def _split(given: Sequence[str], command: Command) -> list[str]:
    """Return the words with a `--` between the command's own flags and those that it passes on."""
    own = {flag_of(name) for name in command.settings}
    place = 1
    while place < len(given) and given[place].partition("=")[0] in own:
        place += 1 if "=" in given[place] else 2
    if given[place : place + 1] in ([], ["--"], ["-h"], ["--help"]):
        return list(given)
    return [*given[:place], "--", *given[place:]]
