"""Defines what a command is, and the arguments that several commands share."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from jobherd.handlers._policy import durations
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.settings.definitions import specifications
from jobherd.supervisor.settings.sources import flag_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

LARGEST_ID = 2**63 - 1
CONNECTION = ("dsn", "schema", "embedded_dir")
"""The settings that every command with a database reads."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the command line."""

    name: str
    help: str
    """One line, without a full stop."""
    example: str
    """One or more lines, each indented by two."""
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    about: str = ""
    """Sentences for `--help`; default: the one line of `help`."""
    settings: tuple[str, ...] = CONNECTION
    """The settings that the command accepts as flags."""
    lists: bool = False
    """Whether the command accepts `--json`."""
    spans: Literal["", "each", "ids", "together"] = ""
    """Whether the command accepts several databases: it runs on each, on those that the ids of its jobs name, or on
    all at once, as `addresses` of its arguments."""
    passes_on: bool = False
    """Whether the words after the command's own flags go to another program."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs, keeps the layout of examples, and fits 80 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=79)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n  " in text:
            return super()._fill_text(text, width, indent)
        # argparse offers no public way.
        return argparse.HelpFormatter._fill_text(self, text, width, indent)  # noqa: SLF001


def add_common(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the flags of the command's settings.

    A flag that is not given sets no attribute, because unset differs from the default.
    """
    descriptions = specifications()
    if command.lists:
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    groups = {
        group: parser.add_argument_group(f"settings: {group.lower()}")
        for group in dict.fromkeys(descriptions[n].group for n in command.settings)
    }
    for name in command.settings:
        setting = descriptions[name]
        text = setting.explanation.replace("`", "").replace("%", "%%")
        given: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        if setting.reader.allowed == "true or false":
            groups[setting.group].add_argument(flag_of(name), action=argparse.BooleanOptionalAction, **given)
        elif setting.reader.separator == ":" or (name == "dsn" and command.spans):
            groups[setting.group].add_argument(flag_of(name), action="append", metavar=setting.metavar, **given)
        else:
            groups[setting.group].add_argument(flag_of(name), metavar=setting.metavar, **given)


def given_flags(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the settings that the command line gives."""
    return {name: value for name, value in vars(arguments).items() if name in specifications()}


def row_limit(text: str) -> int:
    """Parse how many rows a listing prints, for argparse."""
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 10_000:
        message = f"{text[:40]!r} is not a whole number from 1 to 10000"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def job_id(text: str) -> int:
    """Parse the ID of a job, for argparse."""
    if not is_id(text):
        message = f"{text[:40]!r} is not a job's id: a whole number, as `jobherd enqueue` prints it"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def is_id(text: str) -> bool:
    """Whether this text can be the ID of a row."""
    return text.isascii() and text.isdigit() and len(text) <= 19 and 0 < int(text) <= LARGEST_ID


def whole(text: str) -> int:
    """Parse a whole number, for argparse, whose own message would say "invalid int value"."""
    try:
        return int(text)
    except ValueError:
        message = f"{text[:40]!r} is not a whole number"
        raise argparse.ArgumentTypeError(message) from None


def standard_input() -> TextIO:
    """Return standard input for reading.

    Raises CommandError if it is closed: a missing list is not an empty list.
    """
    if sys.stdin is None:
        raise CommandError("standard input is closed: there is nothing to read", ExitCode.USAGE)
    return sys.stdin


def job_ids(texts: Sequence[str]) -> list[int]:
    """Return the IDs of the command line without duplicates, in order. `-` reads standard input."""
    words: list[str] = []
    for text in texts:
        words += standard_input().read().split() if text == "-" else [text]
    try:
        return list(dict.fromkeys(job_id(word) for word in words))
    except argparse.ArgumentTypeError as problem:
        raise CommandError(str(problem), ExitCode.USAGE) from None


def add_job_ids(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one or more IDs."""
    parser.add_argument("ids", nargs="+", metavar="ID", help="a job's id; - reads ids from standard input")


def add_job_and_decrypt(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one ID, and `--decrypt`."""
    parser.add_argument("id", type=job_id, metavar="ID", help="the job's id")
    parser.add_argument(
        "--decrypt",
        action="store_true",
        help="show what is encrypted, with the keys of JOBHERD_KEYS or JOBHERD_KEYS_FILE",
    )


def span(text: str) -> float:
    """Parse a duration, for argparse."""
    try:
        return durations.at_least_zero(text, field="it")
    except ValueError:
        message = (
            f'{text[:40]!r} is not a duration up to 100 years: write "30s", "10m", "1h30m", "7d" or a number of seconds'
        )
        raise argparse.ArgumentTypeError(message) from None


def moment(text: str) -> datetime:
    """Parse a timestamp, for argparse.

    A timestamp without a time zone is rejected, as in Python: it differs from host to host.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text[:40]!r} is not a timestamp: write it like 2030-01-31T08:00:00+01:00"
        raise argparse.ArgumentTypeError(message) from None
    if found.tzinfo is None:
        message = f"{text[:40]!r} has no time zone: write it like 2030-01-31T08:00:00+01:00, or with Z for UTC"
        raise argparse.ArgumentTypeError(message)
    return found
