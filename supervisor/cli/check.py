"""`check`: finds errors in settings and handlers before a supervisor runs them.

A throw-away process imports the handlers, because importing runs arbitrary code, which may hang.
This process imports none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import Command, given_flags, span
from jobherd.supervisor.cli.console import Column, plain
from jobherd.supervisor.cli.gateway_check import gateway_problems
from jobherd.supervisor.crash.orphans import Orphans, become_subreaper
from jobherd.supervisor.settings.definitions import Settings, flags_of_run
from jobherd.supervisor.settings.sources import SettingsError
from jobherd.workers.inspect.phrases import count
from jobherd.workers.process.spec import SECRETS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

LOOKED_AT: Final = ("handlers", "hooks", "app_dir")
_COLUMNS: Final = (
    Column("KIND", least=16), Column("QUEUE", least=8), Column("TIMEOUT", right=True), Column("ATTEMPTS", right=True),
    Column("WHERE", least=16),
)  # fmt: skip
_UNIQUE: Final = Column("UNIQUE BY", least=9)
"""Shown if jobs of a kind are unique."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-sql",
        action="store_true",
        help="print the SQL that creates the tables of the declared stores, with their indexes, and exit",
    )
    parser.add_argument(
        "--timeout", type=span, default=60.0, metavar="TIME", help="how long importing may take (default 60s)"
    )


def _check(arguments: argparse.Namespace) -> int:
    settings: Settings | None = None
    try:
        settings = Settings.load(given_flags(arguments))
        wrong = gateway_problems(settings)
    except SettingsError as problem:
        wrong = list(problem.problems)
        try:
            settings = Settings.load(given_flags(arguments), only=LOOKED_AT)  # still check the handlers
        except SettingsError:
            settings = None
    problems: list[dict[str, Any]] = [{"file": "", "line": 0, "module": "settings", "message": text} for text in wrong]
    kinds: list[dict[str, Any]] = []
    hooks: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    if settings is not None:
        found = _import_elsewhere(settings, arguments.timeout)
        kinds, hooks, notes = found["kinds"], found["hooks"], found["notes"]
        problems += found["problems"]
        if found.get("took", 0.0) > settings.spawn_timeout:
            text = (
                f"importing the handlers took {console.show_span(found['took'])}, and the supervisor kills a worker "
                "that is not ready within "
                f"spawn_timeout ({console.show_span(settings.spawn_timeout)}): import less, or raise spawn_timeout"
            )
            problems.append({"file": "", "line": 0, "module": "settings", "message": text})
    tables = [kind.pop("table") for kind in kinds]
    if arguments.print_sql:
        print("\n".join(table for table in tables if table), end="")
        _complain(problems)
        if not any(tables):
            console.complain("no store is declared, so no table is needed: TableStore(...) declares one")
    elif arguments.json:
        console.print_json({"ok": not problems, "kinds": kinds, "hooks": hooks, "problems": problems, "notes": notes})
    else:
        _print(kinds, hooks, problems, notes)
    return ExitCode.WRONG if problems else ExitCode.DONE


def _import_elsewhere(settings: Settings, limit: float) -> dict[str, Any]:
    """Import the handlers in another process. Return its kinds, hooks, notes and problems.

    The other process answers with a file: handlers print, and a grandchild may hold a pipe open
    indefinitely.
    """
    with tempfile.TemporaryDirectory(prefix="jobherd-check-") as folder:
        answer, importing = Path(folder) / "answer", Path(folder) / "importing"
        sources = json.dumps([settings.handlers, settings.hooks])  # as ASCII: a path may use another encoding
        words = [
            sys.executable,
            "-P",
            "-m",
            "jobherd.supervisor.cli.check_import",
            str(os.getpid()),
            str(answer),
            str(importing),
            str(settings.app_dir),
            sources,
        ]
        become_subreaper()
        strays = Orphans()
        kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
        environment = kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=2, env=environment, start_new_session=True
        ) as process:
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                # The whole process group: processes that a module has started must not outlive the
                # check.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        # Also processes that left the group; their own children are reparented to this process
        # next.
        while left := strays.end():
            for pid in left:
                os.waitpid(pid, 0)
        found = _read(answer)
        if found is None:
            place = _read(importing) or {"file": "", "module": ""}
            problem = {**place, "line": 0, "message": _no_answer(code, limit)}
            return {"kinds": [], "hooks": [], "notes": [], "problems": [problem]}
        return found


def _read(file: Path) -> dict[str, Any] | None:
    """Return what a file of the other process contains, or None if it has not written the file to its end."""
    try:
        found: dict[str, Any] = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return found


def _no_answer(code: int | None, limit: float) -> str:
    if code is None:
        return (
            f"importing the handlers takes more than {console.show_span(limit)}: a module must not do work while it "
            "is imported"
        )
    if code < 0:
        # Real-time signals have no name.
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"importing the handlers ended its process by {name}"
    return f"importing the handlers ended its process with code {code}: a module must not exit while it is imported"


def _print(
    kinds: list[dict[str, Any]],
    hooks: list[dict[str, Any]],
    problems: list[dict[str, Any]],
    notes: list[dict[str, Any]],
) -> None:
    unique = any(kind["unique"] for kind in kinds)
    columns = (*_COLUMNS[:-1], _UNIQUE, _COLUMNS[-1]) if unique else _COLUMNS
    rows = [
        (
            kind["kind"],
            kind["queue"],
            console.show_span(kind["timeout"]),
            kind["max_attempts"],
            *([_unique_by(kind["unique"])] if unique else ()),
            f"{console.near(kind['file'])}:{kind['line']}",
        )
        for kind in kinds
    ]
    if rows:
        console.print_table(columns, rows)
    _complain(problems)
    for note in notes:
        console.complain(f"note: {_at(note)}")
    if not problems:
        beside = f", {count(len(hooks), 'hook', 'hooks')}" if hooks else ""
        print(f"{count(len(kinds), 'kind', 'kinds')}{beside}, no problems")


def _unique_by(unique: Mapping[str, Any] | None) -> str | None:
    """Return what makes jobs of a kind unique, and what differs from the defaults, such as "order_id, waiting"."""
    if unique is None:
        return None
    words = [*(unique["by"] or ["payload"])]
    words += ["queue"] if unique["queue"] else []
    words += [unique[name] for name, default in (("during", "live"), ("conflict", "ignore")) if unique[name] != default]
    words += [
        f"{name} {console.show_span(unique[name])}" for name in ("unique_for", "debounce", "throttle") if unique[name]
    ]
    return ", ".join(words)


def _complain(problems: list[dict[str, Any]]) -> None:
    sys.stdout.flush()
    for problem in problems:
        console.complain(_at(problem))
    if problems:
        console.complain(count(len(problems), "problem", "problems"))


def _at(problem: dict[str, Any]) -> str:
    place = (
        f"{console.near(problem['file'])}:{problem['line']}"
        if problem["line"]
        else console.near(problem["file"]) or problem["module"]
    )
    return f"{plain(place)}: {plain(problem['message'])}" if place else plain(problem["message"])


COMMANDS: Final = (
    Command(
        "check",
        "check settings and handlers",
        "  jobherd check --handlers ./my_handlers",
        _arguments,
        _check,
        about="Read the settings and import the handlers in a throw-away process; report every broken module, kind "
        "declared twice,\n"
        "bad option and handler that would not be served, with file and line. `jobherd run` does not "
        "start with\n"
        "such a problem; notes are hints. The command starts nothing. The exit code is 1 if it finds a problem. With "
        "--print-sql it prints the tables that declared stores need, for psql to read.",
        settings=flags_of_run(),
        lists=True,
    ),
)
