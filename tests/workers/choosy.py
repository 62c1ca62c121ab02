"""Handlers and a `before_claim` hook that returns what the test has written to a file."""

from __future__ import annotations

import os
import time

from psycopg import sql

from jobherd import Only, before_claim, handler


@before_claim
def chooses(child):
    text = open(os.environ["CHOOSES"]).read()
    match text:
        case "":
            return None
        case "talks":
            print("who may come in?")
            return None
        case "nothing":
            return False
        case "raises":
            raise RuntimeError("cannot choose")
        case "hangs":
            time.sleep(3600)
        case "nonsense":
            return {"kinds": ["pick:a"]}
        case "broken":
            return Only(condition="no_such_column = 1 -- a comment")
    return eval(text, {"Only": Only, "sql": sql})


@handler("pick:a", flags=("gpu",))
def a() -> str:
    return "a"


@handler("pick:talks")
def talks() -> None:
    print("the job itself")


@handler("pick:b", cost={"memory_mb": 900})
def b(n: int = 0) -> str:
    return "b"


@handler("pick:c", queue="other")
def c() -> str:
    return "c"
