"""Saves Python's process-wide state before the first job and restores it after each.

That is all of `logging`, the current event loop and its policy, warnings, and hooks and switches of
`sys` and `threading`. The table:

    restored    logging: `disable`, `raiseExceptions`, record factory, logger class; of each logger
                level, handlers, filters, `propagate`, `disabled`; level, formatter and filters of
                the handlers that were there. A logger that a job has created becomes a new one
                again, except for its NullHandlers.
                asyncio: policy, current loop of the main thread, running loop
                warnings: filters, showwarning, formatwarning
                sys: path, argv, stdin, excepthook, unraisablehook, displayhook, breakpointhook,
                meta_path, path_hooks, coroutine origins
                threading: excepthook, stack size, trace and profile functions of new threads
                gc: callbacks, debug flags. decimal: the default of new threads.
                tracemalloc: stopped if a job started it
    kept        imported modules and all their attributes; the state of `random`; codecs, error
                handlers, `mimetypes`, names of log levels, audit hooks: Python cannot remove these,
                or a library adds them when it is first used

The rest of the process, from the working folder to signal handlers, is in `process_state.py`.
docs/explanation/process-state.md has the whole table.
"""

from __future__ import annotations

import asyncio.events
import decimal
import gc
import logging
import sys
import threading
import tracemalloc
import warnings
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTRIBUTES: Final[tuple[tuple[Any, str], ...]] = (
    *(
        (sys, name)
        for name in ("stdin", "excepthook", "unraisablehook", "displayhook", "breakpointhook", "dont_write_bytecode")
    ),
    (threading, "excepthook"),
    (warnings, "showwarning"),
    (warnings, "formatwarning"),
    *((logging, name) for name in ("raiseExceptions", "lastResort", "_logRecordFactory", "_loggerClass")),
    (logging.root.manager, "loggerClass"),
    (logging.root.manager, "logRecordFactory"),
)
_LISTS: Final[tuple[tuple[Any, str], ...]] = (
    *((sys, name) for name in ("path", "argv", "meta_path", "path_hooks")),
    (gc, "callbacks"),
    (warnings, "filters"),
)
_VALUES: Final[tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]] = (
    (gc.get_debug, gc.set_debug),
    (threading.stack_size, threading.stack_size),
    (threading.gettrace, threading.settrace),
    (threading.getprofile, threading.setprofile),
    (sys.get_coroutine_origin_tracking_depth, sys.set_coroutine_origin_tracking_depth),
)
_ABSENT: Final = object()
_DEFAULT_POLICY: Final = (
    getattr(asyncio, "_DefaultEventLoopPolicy", None) or asyncio.DefaultEventLoopPolicy
)  # Python 3.14 warns about the second one.


_STATE: Final = attrgetter("level", "propagate", "disabled", "handlers", "filters")
_State: TypeAlias = "tuple[int, bool, bool, list[logging.Handler], list[Any]]"


class Interpreter:
    """Python's process-wide state as it was before this process's first job."""

    def __init__(self) -> None:
        self._attributes = [getattr(holder, name, _ABSENT) for holder, name in _ATTRIBUTES]
        self._lists = [(getattr(holder, name), list(getattr(holder, name))) for holder, name in _LISTS]
        self._values = [get() for get, _ in _VALUES]
        self._decimals = _reckoning()
        self._default = decimal.DefaultContext.copy()
        self._traces_memory = tracemalloc.is_tracing()
        self._loops = _loops()
        self._loggers = _all_loggers()
        self._states: list[_State] = [_copy(logger) for logger in self._loggers]
        for place, logger in enumerate(self._loggers):
            # A module that configures logging at import may disable Jobherd's loggers.
            if logger.name.startswith("jobherd"):
                self._states[place] = (*self._states[place][:2], False, *self._states[place][3:])
        self._handlers = {
            handler: (handler.level, handler.formatter, list(handler.filters))
            for state in self._states
            for handler in state[3]
        }

    def restore(self) -> bool:
        """Restore everything and return whether anything had changed."""
        moved = self._restore_attributes()
        moved = self._restore_lists() or moved
        moved = self._restore_values() or moved
        moved = self._restore_loops() or moved
        return self._restore_logging() or moved

    def _restore_attributes(self) -> bool:
        moved = False
        for (holder, name), was in zip(_ATTRIBUTES, self._attributes, strict=True):
            if getattr(holder, name, _ABSENT) is not was:
                moved = True
                delattr(holder, name) if was is _ABSENT else setattr(holder, name, was)
        return moved

    def _restore_lists(self) -> bool:
        moved = False
        for (holder, name), (was, content) in zip(_LISTS, self._lists, strict=True):
            if getattr(holder, name, None) is was and was == content:
                continue
            moved = True
            if holder is not gc:  # The list of `gc` cannot be replaced.
                setattr(holder, name, was)
            if holder is warnings:
                warnings.resetwarnings()  # Otherwise decisions of the other filters stay cached.
            was[:] = content
        return moved

    def _restore_values(self) -> bool:
        moved = False
        for (get, put), was in zip(_VALUES, self._values, strict=True):
            if get() != was:
                moved = True
                put(was)
        if _reckoning() != self._decimals:
            moved = True
            for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps", "flags"):
                setattr(decimal.DefaultContext, name, getattr(self._default, name))
        if tracemalloc.is_tracing() and not self._traces_memory:
            moved = True
            tracemalloc.stop()
        return moved

    def _restore_loops(self) -> bool:
        """Restore the policy and the current loop.

        A loop that a job leaves open stays open: a module may keep it for its next job.
        """
        now = _loops()
        if now == self._loops and asyncio._get_running_loop() is None:  # noqa: SLF001  # documented
            return False
        asyncio._set_running_loop(None)  # noqa: SLF001
        policy, loop, called = self._loops
        if now[0] is not policy:
            # its setter warns in Python 3.14
            asyncio.events._event_loop_policy = policy  # type: ignore[attr-defined]  # noqa: SLF001
        if policy is not None and (local := getattr(policy, "_local", None)) is not None:
            local._loop = loop  # noqa: SLF001
            if hasattr(local, "_set_called"):
                local._set_called = called  # noqa: SLF001
        return True

    def _restore_logging(self) -> bool:
        manager = logging.root.manager
        moved = manager.disable != logging.NOTSET
        if moved:
            manager.disable = logging.NOTSET
        loggers = _all_loggers()
        # Cost: there may be hundreds of loggers, so all are compared in one go.
        if loggers != self._loggers or list(map(_STATE, loggers)) != self._states:
            moved = self._restore_loggers(loggers) or moved
        for handler, (level, formatter, filters) in self._handlers.items():
            if handler.level != level or handler.formatter is not formatter or handler.filters != filters:
                moved = True
                handler.level, handler.formatter, handler.filters = level, formatter, list(filters)
        if moved:
            logging.root.setLevel(self._states[0][0])  # Clears the levels that loggers have cached.
        return moved

    def _restore_loggers(self, loggers: list[logging.Logger]) -> bool:
        known: dict[logging.Logger, _State] = dict(zip(self._loggers, self._states, strict=True))
        moved = False
        for logger in loggers:
            if (was := known.get(logger)) is None:
                # A library that is imported late gives its logger a NullHandler, which may stay.
                null: list[logging.Handler] = [
                    handler for handler in logger.handlers if type(handler) is logging.NullHandler
                ]
                was = known[logger] = (logging.NOTSET, True, False, null, [])
            if _STATE(logger) != was:
                moved = True
                logger.level, logger.propagate, logger.disabled = was[:3]
                logger.handlers, logger.filters = list(was[3]), list(was[4])
        self._loggers, self._states = loggers, [known[logger] for logger in loggers]
        return moved


def _copy(logger: logging.Logger) -> _State:
    level, propagate, disabled, handlers, filters = _STATE(logger)
    return level, propagate, disabled, list(handlers), list(filters)


def _all_loggers() -> list[logging.Logger]:
    """Return all loggers, the root first.

    The table has a placeholder for a name of which only descendants exist.
    """
    table = list(logging.root.manager.loggerDict.values())
    return [logging.root, *[logger for logger in table if isinstance(logger, logging.Logger)]]


def _loops() -> tuple[Any, Any, bool]:
    """Return the policy, the current loop, and whether a current loop was ever set.

    A default policy without a loop counts as no policy.
    """
    # its getter would create one
    policy = asyncio.events._event_loop_policy  # type: ignore[attr-defined]  # noqa: SLF001
    local = getattr(policy, "_local", None)
    loop, called = getattr(local, "_loop", None), getattr(local, "_set_called", False)
    if loop is None and not called and type(policy) is _DEFAULT_POLICY:
        return None, None, False
    return policy, loop, called


def _reckoning() -> tuple[object, ...]:
    context = decimal.DefaultContext
    return (
        context.prec,
        context.rounding,
        context.Emin,
        context.Emax,
        context.capitals,
        context.clamp,
        dict(context.traps),
    )
