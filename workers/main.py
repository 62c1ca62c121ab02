"""Where a child begins: the clean slate, then the life of its kind, then `os._exit`.

The parent calls `main` in the forked child once everything of the parent's is let go of, with all signals blocked. From here on nothing
returns: frames below belong to the parent. Kinds are a table; the modules behind it are imported in the child that lives by them.
"""

from __future__ import annotations

import logging
import os
import signal
import traceback
from typing import TYPE_CHECKING, Final, NoReturn

from jobherd.handlers._enqueue.dsn import redact_dsn
from jobherd.workers.ipc.pipes import EXIT_LEFT
from jobherd.workers.process.context import ChildContext, start_clean
from jobherd.workers.run.output import flush
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.workers.process.spec import ChildSpec

EXIT_BROKEN: Final = 70
"""An error of our own that nobody expected."""

_log = logging.getLogger("jobherd.child")


def main(spec: ChildSpec) -> NoReturn:
    """Live as the child of that seat, and end the process with an exit code from `link`. Never returns.

    seat: from the parent. All signals must be blocked; they are unblocked once this child has handlers of its own.
    """
    code = EXIT_BROKEN
    try:
        code = _live(spec)
    except SystemExit as problem:  # a module of ours called exit: still no way through the parent's frames
        code = problem.code if isinstance(problem.code, int) else EXIT_BROKEN
    except BaseException:  # what nobody expected must be seen, in the log and by the parent
        _show_last_words(spec)
    finally:
        reach("child.leaving")
        flush()
        os._exit(code)


def _live(spec: ChildSpec) -> int:
    context = start_clean(spec)
    if os.getppid() != spec.parent:
        return EXIT_LEFT  # before it connects: nobody would ever know of it
    reach("child.clean")
    try:
        return KINDS[spec.kind](context)
    except Exception:
        if context.wake.orphaned:
            return EXIT_LEFT
        raise


def _worker(context: ChildContext) -> int:
    from jobherd.workers.start import run  # noqa: PLC0415 - only in such a child

    return run(context)


def _keeper(context: ChildContext) -> int:
    from jobherd.workers.maintenance.maintenance import run  # noqa: PLC0415 - only in such a child

    return run(context)


def _resetter(context: ChildContext) -> int:
    from jobherd.workers.stores.resetter import run  # noqa: PLC0415 - only in such a child

    return run(context)


def _web(context: ChildContext) -> int:
    from jobherd.workers.web import run  # noqa: PLC0415 - only in such a child

    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_LEFT))  # it holds nothing that could be finished
    run(context.spec, title=context.title)
    return EXIT_LEFT


KINDS: Final[dict[str, Callable[[ChildContext], int]]] = {"worker": _worker, "keeper": _keeper, "web": _web, "resetter": _resetter}
"""The kinds of children, and where the life of each begins. Each returns the exit code."""


def _show_last_words(spec: ChildSpec) -> None:
    text = traceback.format_exc()
    try:
        text = redact_dsn(text)
        _log.critical("an error of Jobherd's own ended this process", exc_info=True)
        fd = spec.board.open_trace()
        os.write(fd, text.encode(errors="replace")[-30_000:])
    except BaseException:  # the last way to be heard
        os.write(2, text.encode(errors="replace"))
