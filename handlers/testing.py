"""Run jobs in a test, here and now, as a worker would.

    from jobherd.testing import run

    assert run(receipt, order_id=7).value() == {"sent": True}

The payload makes the round trip through JSON, the binding, the call and the outcome are those of the worker. What is not there is the
process around it: no timeout is enforced, and a crash is a crash of the test. `recorder` collects what is enqueued, without a database.
`inline` adds a database: jobs that the handlers enqueue go into a transaction of its connection, can be looked at and run, and are gone at
the end. In a test that runs in an event loop, `arun` and `adrain` take the places of `run` and `drain`.
"""

from __future__ import annotations

from jobherd.handlers._testing.attempt import Ran, arun, arun_payload, run, run_batch, run_payload
from jobherd.handlers._testing.enqueued import Enqueued, Inline, Recorder, inline, recorder
from jobherd.handlers._values.outcome import EXPIRED, Outcome

__all__ = [
    "EXPIRED",
    "Enqueued",
    "Inline",
    "Outcome",
    "Ran",
    "Recorder",
    "arun",
    "arun_payload",
    "inline",
    "recorder",
    "run",
    "run_batch",
    "run_payload",
]
