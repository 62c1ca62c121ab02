"""Changes that a job makes to Python's process-wide tables do not reach the next job."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import pytest

from jobherd.workers.process.interpreter import Interpreter
from tests.support.patience import LIMIT

CHANGES = {
    "dictConfig": "logging.config.dictConfig({'version': 1, 'handlers': {'c': {'class': 'logging.StreamHandler'}}, 'root': {'handlers': ['c']}})",
    "fileConfig": "logging.config.fileConfig(io.StringIO('[loggers]\\nkeys=root\\n[handlers]\\nkeys=\\n[formatters]\\nkeys=\\n[logger_root]\\nhandlers=\\n'))",
    "basicConfig": "logging.basicConfig(level=10, force=True)",
    "a handler": "logging.getLogger('app').addHandler(logging.StreamHandler())",
    "a handler of a new logger": "logging.getLogger('new.one').addHandler(logging.StreamHandler())",
    "a filter": "logging.getLogger('app').addFilter(lambda record: False)",
    "a filter of the root's handler": "logging.root.handlers[0].addFilter(lambda record: False)",
    "a formatter": "logging.root.handlers[0].setFormatter(logging.Formatter('%(message)s!'))",
    "the level of a handler": "logging.root.handlers[0].setLevel(60)",
    "a level": "logging.getLogger('app').setLevel(60)",
    "a level of a new logger": "logging.getLogger('new.one').setLevel(60)",
    "propagate": "logging.getLogger('app').propagate = False",
    "disabled": "logging.getLogger('app').disabled = True",
    "disable": "logging.disable(60)",
    "raiseExceptions": "logging.raiseExceptions = False",
    "record factory": "logging.setLogRecordFactory(lambda *a, **k: None)",
    "logger class": "logging.setLoggerClass(type('Odd', (logging.Logger,), {}))",
    "asyncio.run": "asyncio.run(asyncio.sleep(0))",
    "a running loop": "asyncio._set_running_loop(asyncio.new_event_loop())",
    "an event loop": "asyncio.set_event_loop(asyncio.new_event_loop())",
    "a policy": "asyncio.set_event_loop_policy(type('Odd', (asyncio.DefaultEventLoopPolicy,), {})())",
    "warnings": "warnings.simplefilter('error')",
    "no warnings": "warnings.resetwarnings()",
    "warnings of a block that never ends": "warnings.catch_warnings().__enter__(); warnings.simplefilter('error')",
    "showwarning": "logging.captureWarnings(True)",
    "sys.path": "sys.path.insert(0, '/nowhere')",
    "another sys.path": "sys.path = ['/nowhere']",
    "sys.argv": "sys.argv = ['x']",
    "sys.stdin": "sys.stdin = io.StringIO()",
    "sys.excepthook": "sys.excepthook = print",
    "sys.unraisablehook": "sys.unraisablehook = print",
    "meta_path": "sys.meta_path.clear()",
    "gc callbacks": "gc.callbacks.append(lambda *a: None)",
    "gc debug": "gc.set_debug(gc.DEBUG_UNCOLLECTABLE)",
    "threading.excepthook": "threading.excepthook = print",
    "stack size": "threading.stack_size(1 << 20)",
    "threading.settrace": "threading.settrace(lambda *a: None)",
    "decimals of new threads": "decimal.DefaultContext.prec = 3",
    "tracemalloc": "tracemalloc.start()",
    "coroutine origins": "sys.set_coroutine_origin_tracking_depth(5)",
}
PROGRAM = """
import asyncio, decimal, gc, io, logging, logging.config, sys, threading, tracemalloc, warnings
sys.path.insert(0, %(root)r)
from jobherd import handler
from jobherd.handlers._run.call import call
from jobherd.handlers._run.job import Job
from jobherd.workers.process.interpreter import Interpreter
lines = io.StringIO()
logging.basicConfig(stream=lines, level=30)
logging.getLogger('app').setLevel(20)

def look():
    lines.seek(0); lines.truncate()
    for name in ('app', 'new.one', 'jobherd.x'):
        logging.getLogger(name).warning('heard')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            loop = asyncio.get_event_loop()
            current = (loop.run_until_complete(asyncio.sleep(0, 5)), type(asyncio.get_event_loop_policy()).__name__)
            loop.close()
        except RuntimeError as problem:
            current = str(problem)
    return (lines.getvalue(), current, list(map(str, warnings.filters)), list(sys.path), list(sys.argv), sys.stdin, sys.excepthook,
        sys.unraisablehook, len(sys.meta_path), len(gc.callbacks), gc.get_debug(), threading.excepthook, threading.stack_size(),
        threading.gettrace(), decimal.DefaultContext.prec, tracemalloc.is_tracing(), sys.get_coroutine_origin_tracking_depth(),
        logging.raiseExceptions, logging.getLoggerClass(), warnings.showwarning)

logging.getLogger('jobherd.x')
interpreter = Interpreter()
before = look()
interpreter.restore()
assert not interpreter.restore()
keep = []
exec(%(change)r)
assert interpreter.restore(), "not seen"
assert look() == before, (look(), before)
interpreter.restore()

@handler('a:b')
async def ours() -> None: ...
call(ours, Job(id=1, kind='a:b'), {})
assert not interpreter.restore(), "our own loop is taken for a job's"
"""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_interpreter_restores_what_a_job_has_changed(change):
    root = str(__import__("pathlib").Path(__file__).parents[3])
    code = textwrap.dedent(PROGRAM) % {"root": root, "change": change}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert ran.returncode == 0, ran.stderr


def test_null_handler_of_a_library_that_is_imported_late_is_kept():
    interpreter = Interpreter()
    late = logging.getLogger("late.library")
    null = logging.NullHandler()
    late.addHandler(null)
    try:
        assert not interpreter.restore()
        assert late.handlers == [null]
    finally:
        late.removeHandler(null)
