"""Entry point of every child process.

A clean process state, then the code of its kind, then `os._exit`.

The supervisor calls `main` in the forked child process after it has released everything of its own
there, with all signals blocked. From here on nothing returns, because the frames below belong to
the supervisor. `KINDS` is a table, and each child process imports only the module of its kind.
"""

from __future__ import annotations

import logging
import os
import signal
import traceback
from typing import TYPE_CHECKING, Final, NoReturn

from jobherd.handlers._enqueue.dsn import redact_dsn
from jobherd.workers.ipc.pipes import EXIT_REQUESTED
from jobherd.workers.process.context import ChildContext, start_clean
from jobherd.workers.run.output import flush
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.workers.process.spec import ChildSpec

EXIT_BROKEN: Final = 70
"""An unexpected error in Jobherd itself."""

_log = logging.getLogger("jobherd.child")


def main(spec: ChildSpec) -> NoReturn:
    """Run as the child process of that spec, and exit with a code from `ipc/pipes.py`.

    Never returns.

    Args:
        spec: from the supervisor. All signals must be blocked. They are unblocked once this process
            has its own signal handlers.
    """
    code = EXIT_BROKEN
    try:
        code = _live(spec)
    # A module of Jobherd called exit. It must not unwind through the supervisor's frames either.
    except SystemExit as problem:
        code = problem.code if isinstance(problem.code, int) else EXIT_BROKEN
    except BaseException:  # An unexpected error must be visible, in the log and to the supervisor.
        _show_last_words(spec)
    finally:
        reach("child.leaving")
        flush()
        os._exit(code)


def _live(spec: ChildSpec) -> int:
    context = start_clean(spec)
    if os.getppid() != spec.parent:
        return EXIT_REQUESTED  # Exit before it connects: no supervisor would ever learn of this process.
    reach("child.clean")
    try:
        return KINDS[spec.kind](context)
    except Exception:
        if context.wake.orphaned:
            return EXIT_REQUESTED
        raise


def _worker(context: ChildContext) -> int:
    from jobherd.workers.start import run  # noqa: PLC0415 - imported only in a process of this kind

    return run(context)


def _maintenance(context: ChildContext) -> int:
    from jobherd.workers.maintenance.maintenance import run  # noqa: PLC0415 - imported only in a process of this kind

    return run(context)


def _resetter(context: ChildContext) -> int:
    from jobherd.workers.stores.resetter import run  # noqa: PLC0415 - imported only in a process of this kind

    return run(context)


def _web(context: ChildContext) -> int:
    from jobherd.workers.web import run  # noqa: PLC0415 - imported only in a process of this kind

    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_REQUESTED))  # It holds nothing that has to be finished.
    run(context.spec, title=context.title)
    return EXIT_REQUESTED


def _gateway(context: ChildContext) -> int:
    from jobherd.workers.gateway.gateway import run  # noqa: PLC0415 - imported only in a process of this kind

    return run(context)


def _uplink(context: ChildContext) -> int:
    from jobherd.workers.uplink.process import run  # noqa: PLC0415 - imported only in a process of this kind

    return run(context)


KINDS: Final[dict[str, Callable[[ChildContext], int]]] = {
    "worker": _worker,
    "maintenance": _maintenance,
    "web": _web,
    "resetter": _resetter,
    "gateway": _gateway,
    "uplink": _uplink,
}
"""The entry function of each kind of child process. Each returns the exit code."""


def _show_last_words(spec: ChildSpec) -> None:
    text = traceback.format_exc()
    try:
        text = redact_dsn(text)
        _log.critical("an error of Jobherd's own ended this process", exc_info=True)
        fd = spec.board.open_trace()
        os.write(fd, text.encode(errors="replace")[-30_000:])
    except BaseException:  # Standard error is the last way to report the error.
        os.write(2, text.encode(errors="replace"))
