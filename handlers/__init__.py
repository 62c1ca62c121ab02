"""The public Python API of Jobherd: handlers, producers and their values.

`from jobherd import ...` offers every name of `__all__`, for authors of handlers and for producers.
Modules of this package without a leading underscore are handlers that ship with Jobherd, and
`testing`. Packages with an underscore are private.

    from jobherd import handler

    @handler("mail:receipt")
    def receipt(order_id: int) -> None: ...

    receipt.enqueue(order_id=7)

How to read it, from the top:

* `_define/`: declarations: handlers, signatures, hooks, claim filters, table stores.
* `_load/`: finds them in the user's folders and modules, and says what does not load.
* `_run/`: a job as its handler sees it, and the call.
* `_enqueue/`: clients and producers, sync and async, single and bulk, and waiting for a result.
* `_policy/`: retries, backoff, durations, schedules, costs, redaction.
* `_values/`: payloads, results, errors and outcomes as values.
* `_pytest` and `testing`: tools for tests. `_facade/` is the package `jobherd` itself,
  with `jobherd.django` and `jobherd.sqlalchemy`.

Rules: a handler is a plain function and can be called as one. No connection is opened before a job
is enqueued. Importing a handler registers nothing. One place turns what a handler returns or raises
into an outcome, for workers and tests alike. Payloads are checked on enqueue and never shown in an
error.
"""

from __future__ import annotations

from jobherd.handlers._define.binding import BindingError
from jobherd.handlers._define.claim_filter import Only
from jobherd.handlers._define.flow import Flow
from jobherd.handlers._define.flow_lists import chain, extend, group
from jobherd.handlers._define.flow_nodes import Call, Node
from jobherd.handlers._define.handler import Handler, handler
from jobherd.handlers._define.hooks import (
    Child,
    Hook,
    after_job,
    before_claim,
    before_job,
    middleware,
    on_child_exit,
    on_child_start,
    on_death,
    on_failure,
)
from jobherd.handlers._define.producer import Producer
from jobherd.handlers._define.table_record import ExecutionLogEntry
from jobherd.handlers._define.table_store import TableStore
from jobherd.handlers._enqueue.async_client import AsyncClient
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import configure, default_client
from jobherd.handlers._enqueue.dsn import NotConfiguredError
from jobherd.handlers._enqueue.own_connection import aenqueue_many_on, aenqueue_on, enqueue_many_on, enqueue_on
from jobherd.handlers._policy.backoff import Backoff
from jobherd.handlers._policy.durations import Duration
from jobherd.handlers._policy.schedule import Schedule
from jobherd.handlers._policy.unique import Unique
from jobherd.handlers._run.child_jobs import ChildJob, ChildJobFailed, ChildJobs
from jobherd.handlers._run.dispositions import (
    Abandon,
    Completed,
    Disposition,
    Failed,
    JobCancelled,
    JobDrained,
    JobInterrupted,
    JobSuspended,
    JobTimeout,
    Nack,
    Poison,
    Retry,
    Snooze,
)
from jobherd.handlers._run.inputs import InputError
from jobherd.handlers._run.job import Job
from jobherd.handlers._run.steps import StepError
from jobherd.handlers._values.encryption import decrypt
from jobherd.handlers._values.job_id import DuplicateJob, JobId
from jobherd.handlers._values.keys import KeyMissingError
from jobherd.handlers._values.outcome import Outcome
from jobherd.handlers._values.payload import Json, PayloadError, ResultError, check_payload

__all__ = [
    "Abandon",
    "AsyncClient",
    "Backoff",
    "BindingError",
    "Call",
    "Child",
    "ChildJob",
    "ChildJobFailed",
    "ChildJobs",
    "Client",
    "Completed",
    "Disposition",
    "DuplicateJob",
    "Duration",
    "ExecutionLogEntry",
    "Failed",
    "Flow",
    "Handler",
    "Hook",
    "InputError",
    "Job",
    "JobCancelled",
    "JobDrained",
    "JobId",
    "JobInterrupted",
    "JobSuspended",
    "JobTimeout",
    "Json",
    "KeyMissingError",
    "Nack",
    "Node",
    "NotConfiguredError",
    "Only",
    "Outcome",
    "PayloadError",
    "Poison",
    "Producer",
    "ResultError",
    "Retry",
    "Schedule",
    "Snooze",
    "StepError",
    "TableStore",
    "Unique",
    "aenqueue_many_on",
    "aenqueue_on",
    "after_job",
    "before_claim",
    "before_job",
    "chain",
    "check_payload",
    "configure",
    "decrypt",
    "default_client",
    "enqueue_many_on",
    "enqueue_on",
    "extend",
    "group",
    "handler",
    "middleware",
    "on_child_exit",
    "on_child_start",
    "on_death",
    "on_failure",
]

for _public in map(globals().get, __all__):
    if isinstance(_public, type) and issubclass(_public, BaseException):
        _public.__module__ = "jobherd"  # tracebacks and pickles show the name that users import
