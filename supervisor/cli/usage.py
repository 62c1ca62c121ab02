"""Parses the command line: an error is one line with a suggestion, and the help lists commands by purpose.

argparse prints the whole usage of a command for each error, and its commands as one long list. This
module must not import a command: it gets the names and lines that it shows.
"""

from __future__ import annotations

import argparse
import difflib
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jobherd.supervisor.cli.codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

GROUPS: Final = {
    "run jobs": ("run", "work", "check", "forge"),
    "enqueue and follow jobs": ("enqueue", "wait", "job", "jobs", "errors", "why", "steps", "signal", "keys"),
    "follow chains, groups and graphs of jobs": ("flows", "flow"),
    "change jobs": ("retry", "cancel", "reprioritize", "reschedule", "delete", "purge"),
    "control queues": ("queues", "pause", "resume", "limit", "limits", "fair"),
    "run jobs periodically": ("schedules", "schedule"),
    "watch and control the fleet": ("status", "top", "dashboard", "fleet", "stack", "profile"),
    "maintain the database": ("doctor", "migrate", "bench", "dsn", "psql"),
}
"""The commands by purpose, as the help lists them."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ": did you mean NAME?" for the most similar name, or nothing.

    >>> did_you_mean("mail:recipt", ["mail:receipt", "card:charge"])
    ': did you mean mail:receipt?'
    """
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.65)
    return f": did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: what is wrong, with the argument, and what to do."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        if missing := re.fullmatch(r"the following arguments are required: (.*)", message):
            verb = "are" if "," in missing[1] else "is"
            text = "no command is given" if missing[1] == "COMMAND" else f"{missing[1]} {verb} missing"
        else:
            text = message.removeprefix("argument ")
            text = re.sub(r"^(\S+): expected (one|at least one) argument$", r"\1 needs a value", text)
        end = " " if text.endswith("?") else ". "
        self.exit(ExitCode.USAGE, f"jobherd: {text}{end}See `{self.prog} --help`.\n")

    def reject(self, unknown: Sequence[str]) -> NoReturn:
        """Report the first argument that this command does not have."""
        first = unknown[0].partition("=")[0]
        if first.startswith("-"):
            self.error(f"unknown option {first}{did_you_mean(first, self._option_string_actions)}")
        self.error(f"unexpected argument {unknown[0][:40]!r}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(name) for name in action.choices]
        if action.dest == "command":
            message = f"unknown command {value[:40]!r}{did_you_mean(value, [*names, 'help', 'version'])}"
            raise argparse.ArgumentError(None, message)
        message = f"{str(value)[:40]!r} is not one of {', '.join(names)}{did_you_mean(str(value), names)}"
        raise argparse.ArgumentError(action, message)


class GroupedParser(Parser):
    """The parser of the program itself, whose help lists commands by purpose."""

    lines: Mapping[str, str] = {}
    """The help of each command, by name."""

    def format_help(self) -> str:
        """Return the help: commands by purpose, examples and exit codes."""
        parts = [f"usage: {self.prog} COMMAND [OPTION ...]", self.description or ""]
        for purpose, names in GROUPS.items():
            rows = [f"  {name:<13} {self.lines[name]}" for name in names if name in self.lines]
            parts.append("\n".join([f"{purpose}:", *rows]))
        parts += [
            "`jobherd COMMAND --help` explains a command, `jobherd version` prints the version.",
            self.epilog or "",
        ]
        return "\n\n".join(parts) + "\n"
