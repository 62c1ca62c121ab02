"""The attempt stores the class of the exception that ended it, with its module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tests.cli.shell import jobherd

if TYPE_CHECKING:
    from tests.support.fleet import Stage

FAILING = """
import json
from jobherd import Failed, handler

class Refused(json.JSONDecodeError):
    def __init__(self): super().__init__("no", "", 0)

@handler("f:raises", max_attempts=2, backoff="10ms")
def raises() -> None:
    raise json.JSONDecodeError("no", "", 0)

@handler("f:retries", max_attempts=9, backoff="1h")
def retries() -> None:
    raise ValueError("no")

@handler("f:batch", max_attempts=1, batch=10)
def batch(payloads: list[dict]) -> None:
    raise KeyError("all of them")

@handler("f:says", max_attempts=1)
def says() -> None:
    raise Failed("ValueError: no")

@handler("f:fine")
def fine() -> None: ...
"""
SEEN = "SELECT error_class FROM jobherd.jobs WHERE id = %s"


def test_each_attempt_stores_the_class_of_its_error(stage: Stage):
    fleet = stage.run_fleet(handlers=stage.write("failing.py", FAILING))
    jobs = {kind: stage.enqueue(kind) for kind in ("f:raises", "f:batch", "f:says")}
    stage.wait_all(list(jobs.values()), "failed")
    waiting, fine = stage.enqueue("f:retries"), stage.enqueue("f:fine")
    stage.wait_state(waiting, "retrying")
    stage.wait_state(fine, "completed")
    seen = {kind: stage.call(SEEN, job) for kind, job in {**jobs, "f:retries": waiting, "f:fine": fine}.items()}
    assert seen == {
        "f:raises": "json.decoder.JSONDecodeError",
        "f:batch": "builtins.KeyError",
        "f:says": None,
        "f:retries": "builtins.ValueError",
        "f:fine": None,
    }
    shown = orjson.loads(jobherd("job", jobs["f:raises"], "--json", dsn=stage.dsn).out)
    assert shown["error_class"] == "json.decoder.JSONDecodeError"
    assert [one["error_class"] for one in shown["history"]] == ["json.decoder.JSONDecodeError"] * 2
    assert all("error_class" not in one.get("usage", {}) for one in shown["history"])
    assert stage.call("SELECT usage FROM jobherd.history WHERE id = %s", fine) is None, (
        "a completed job stores nothing for it"
    )
    assert fleet.stop() == 0
