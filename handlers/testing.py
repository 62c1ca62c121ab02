"""Run jobs in a test directly, as a worker would.

    from jobherd.testing import run

    assert run(receipt, order_id=7).value() == {"sent": True}

The payload is encoded to JSON and decoded. Binding, call and outcome are those of the worker. The
process around it is missing: no timeout is enforced, and a crash ends the test. `recorder` records
enqueued jobs, without a database. `inline` adds a database: enqueued jobs go into a transaction,
its own or the test's, where the test can check and run them; it is rolled back at the end.
`RealWorker` starts real processes, for committed jobs. In a test inside an event loop, use `arun`
and `adrain` instead of `run` and `drain`.
"""

from __future__ import annotations

from jobherd.handlers._testing.attempt import arun, arun_payload, run, run_payload
from jobherd.handlers._testing.batch import run_batch
from jobherd.handlers._testing.enqueued import Enqueued
from jobherd.handlers._testing.inline import Inline, inline
from jobherd.handlers._testing.ran import Ran
from jobherd.handlers._testing.real_worker import RealWorker
from jobherd.handlers._testing.recorder import Recorder, recorder
from jobherd.handlers._values.outcome import EXPIRED, Outcome

__all__ = [
    "EXPIRED",
    "Enqueued",
    "Inline",
    "Outcome",
    "Ran",
    "RealWorker",
    "Recorder",
    "arun",
    "arun_payload",
    "inline",
    "recorder",
    "run",
    "run_batch",
    "run_payload",
]
