"""`keys`: lists the keys of unique jobs that are held, and by which job. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import Command, job_id, row_limit
from jobherd.supervisor.cli.console import Column
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.job_text import document, key_of, since
from jobherd.supervisor.cli.kinds import suggest_kind

if TYPE_CHECKING:
    import argparse

_COLUMNS: Final = (
    Column("KIND", least=12), Column("KEY", least=12), Column("JOB", right=True), Column("STATE"),
    Column("SINCE", right=True), Column("HELD", least=10),
)  # fmt: skip
_ENDS: Final = {"live": "until it has finished", "waiting": "until it starts"}


def _end_of(key: dict[str, Any], *, live: bool) -> str:
    """Return how long a held key is held yet. live: whether its job has not finished."""
    ends = [_ENDS[key["during"]]] if live and key["during"] in _ENDS else []
    left = [f"for {since(key['asked_at'], key['until'])}"] if key["until"] and key["until"] > key["asked_at"] else []
    return " and ".join(left + ends)


def _line(key: dict[str, Any]) -> tuple[object, ...]:
    age = None if key["since"] is None else since(key["since"], key["asked_at"])
    ends = _end_of(key, live=key["state"] not in (None, *FINAL_STATES))
    return (key["kind"], key_of(key), key["job"], key["state"], age, ends)


def _keys_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", metavar="KIND", help="only keys of jobs of this kind")
    parser.add_argument("--job", type=job_id, metavar="ID", help="only keys that this job holds")
    parser.add_argument(
        "--limit", type=row_limit, default=50, metavar="N", help="how many at most, 1 to 10000 (default 50)"
    )


def _keys(arguments: argparse.Namespace) -> int:
    wanted = {"kind": arguments.kind, "job": arguments.job, "limit": arguments.limit}
    with session(arguments) as at:
        keys = at.rows("observe/list_keys", wanted)
        if not keys:
            suggest_kind(at, arguments.kind)
    if arguments.json:
        console.print_json([document(key) for key in keys])
    elif keys:
        console.print_table(_COLUMNS, [_line(key) for key in keys])
        if len(keys) == arguments.limit:
            console.complain(f"there may be more: --limit {min(10_000, 10 * arguments.limit)}, or --kind")
    else:
        console.complain("no job holds a key" + (" like that" if arguments.kind or arguments.job else ""))
    return ExitCode.DONE


COMMANDS: Final = (
    Command(
        "keys",
        "list the keys of unique jobs, and the jobs that hold them",
        "  jobherd keys --kind order:sync",
        _keys_arguments,
        _keys,
        lists=True,
    ),
)
