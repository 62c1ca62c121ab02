"""Imports handlers and hooks in the throw-away process of `check`, and writes the results to a file.

No module imports this one. Usage: `python -m jobherd.supervisor.cli.check_import PARENT ANSWER_FILE
IMPORTING_FILE APP_DIR SOURCES`. PARENT is the pid of the command: this process does not outlive it.
SOURCES is JSON: a list of two lists, the sources of handlers and those of hooks.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._define.field_names import doubtful_redact
from jobherd.handlers._define.table_store import TableHandler
from jobherd.handlers._load.registry import HOOKS, all_hooks, load, notes_of
from jobherd.handlers._load.unchecked import unchecked
from jobherd.handlers._policy.unique import Unique
from jobherd.handlers._values.sanitize import sanitize
from jobherd.sql.table_statements import definition
from jobherd.workers.run.loading import none_found_message, put_on_path

if TYPE_CHECKING:
    from jobherd.handlers._load.load_problem import LoadProblem
    from jobherd.handlers._policy.policy import Policy

_PR_SET_PDEATHSIG: Final = 1


def main(parent: str, answer: str, importing: str, app_dir: str, sources: str) -> None:
    """Import the sources as a worker does, with `app_dir` first on the path.

    Write kinds, hooks, problems and notes to the file `answer`. While a module is imported, the
    file `importing` names it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it died before prctl, so no signal will come
        return

    def note(module: str, file: str) -> None:
        Path(importing).write_bytes(orjson.dumps({"module": module, "file": sanitize(file, 1000)}))

    handlers, hooks = json.loads(sources)
    problem = put_on_path(app_dir)
    began = time.monotonic()
    found = load(() if problem else handlers, on_import=note)
    more = load(() if problem else hooks, named=HOOKS, on_import=note)
    note("", "")
    took = time.monotonic() - began
    kinds: list[dict[str, Any]] = [
        {
            "kind": kind,
            "queue": handler.policy.queue,
            "timeout": handler.policy.timeout,
            "max_attempts": handler.policy.max_attempts,
            "unique": _unique(handler.policy),
            "file": sanitize(handler.file, 1000),
            "line": handler.line,
            "table": definition(handler.store.names, kind) if isinstance(handler, TableHandler) else None,
        }
        for kind, handler in sorted(found.kinds.items())
    ]
    declared = [
        {"event": hook.event, "kinds": sorted(hook.kinds), "file": sanitize(hook.file, 1000), "line": hook.line}
        for hook in all_hooks(more, found)
    ]
    problems = [_as_dict(each) for each in found.problems + more.problems]
    notes = [_as_dict(each) for each in (*notes_of(found, more), *found.elsewhere)]
    for handler in found.kinds.values():
        notes += [
            {
                "file": sanitize(handler.file, 1000),
                "line": handler.line,
                "module": handler.made.module,
                "message": sanitize(text, 2000),
            }
            for text in (*unchecked(handler), *doubtful_redact(handler))
        ]
    # A supervisor with a part of the handlers may share a module of hooks: only worth a look.
    notes += [
        {
            "file": sanitize(hook.file, 1000),
            "line": hook.line,
            "module": "",
            "message": f"{hook.event} is never called for {kind!r}: no handler of this kind is loaded",
        }
        for hook in all_hooks(more, found)
        for kind in sorted(hook.kinds - found.kinds.keys())
    ]
    if not kinds and not problems:
        problems.append({"file": "", "line": 0, "module": "", "message": problem or none_found_message(handlers)})
    Path(answer).write_bytes(
        orjson.dumps({"kinds": kinds, "hooks": declared, "problems": problems, "notes": notes, "took": took})
    )


def _unique(policy: Policy) -> dict[str, Any] | None:
    """Return the options that make jobs of a kind unique, or None. `by` of None: the whole payload."""
    times = {name: getattr(policy, name) for name in ("unique_for", "debounce", "throttle")}
    if policy.unique is None and not any(times.values()):
        return None
    return asdict(policy.unique or Unique()) | times


def _as_dict(problem: LoadProblem) -> dict[str, Any]:
    return {"file": problem.file, "line": problem.line, "module": problem.module, "message": problem.message}


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # threads that a module has started must not keep this process alive
