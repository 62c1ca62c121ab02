"""Handlers for the hostile inputs.

They return their input in every way in which a handler can return something.
"""

from __future__ import annotations

import logging
import sys

from jobherd import Completed, Failed, Job, Nack, Poison, Snooze, handler

WAYS = ("result", "completed", "error", "code", "poison", "nack", "snooze", "print", "log", "entry", "progress", "note")


@handler("hostile:says", max_attempts=1, timeout="60s")
def says(job: Job, value: object = None, how: str = "result") -> object:  # One branch for each way to return something.
    text = value if isinstance(value, str) else repr(value)[:1000]
    match how:
        case "completed":
            raise Completed(value)
        case "error":
            raise ValueError(value)
        case "code":
            return Failed(text, code=text)
        case "poison":
            raise Poison(text, code=text)
        case "nack":
            return Nack(0, text)
        case "snooze":
            return Snooze("1d")
        case "print":
            print(text)
            sys.stderr.write(text)
        case "log":
            logging.getLogger(text[:50]).error(text.replace("%", "%%"), extra={"value": value})
        case "entry":
            job.log(text[:100], out=value)
        case "progress":
            job.progress(0.5, text, value)
        case "note":
            raise_with_note(text)
        case _:
            return value
    return None


def raise_with_note(text: str) -> None:
    problem = ExceptionGroup(text, [ValueError(text), KeyError(text)])
    problem.add_note(text)
    raise problem from OSError(text)


@handler("hostile:int", max_attempts=1, timeout="60s")
def integer(n: int) -> int:
    return n + 1


@handler("hostile:nothing", max_attempts=1, timeout="60s")
def nothing() -> None: ...
