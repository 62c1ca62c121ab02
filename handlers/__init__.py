"""What people write, and the words they write it with.

`from handlers import ...` is the whole public Python API, for those who write handlers and for those who enqueue jobs. Modules of this
package without a leading underscore hold handlers that ship, and `handlers.testing`; those with one are not for use from outside.

    from handlers import handler

    @handler("mail:receipt")
    def receipt(order_id: int) -> None: ...

    receipt.enqueue(order_id=7)

How to read it:

* A handler: `_handler` with `_policy` (what it declares), `_binding`, `_converters`, `_shapes`, `_models`, `_fidelity` (payload to arguments), `_batch` (several jobs in one call),
  `_backoff`, `_demands`, `_redact`; `_registry` finds them in modules, with `_modules` (under which names), `_made` (whose they are),
  `_wrapping` (what decorators hide) and `_unchecked`; `_call` calls one and ends it from outside.
* A job in its handler's eyes: `_job`, `_transaction`, `_dispositions` (what it may say), `_hooks` and `_only` (what is called around it and before it).
* Into the queue: `_producer` (typed), `_client`, `_async_client` (by name), `_own_connection`; on the way `_default` (who is asked when nobody is named),
  `_origin` (who enqueues), `_payload`, `_bulk`, `_enqueue`, then `_send`, `_tracing` (its span), `_pool`, `_dsn` (which
  database, with `_configured` for files and `_embedded`). `_waiting` is the way back.
* Shared words: `_outcome`, `_durations`, `_sanitize`, `_addresses` (which may be called). `_tables` with `_records`: tables that the application owns. `_trial` and `_watching`: `handlers.testing`, with
  `_pytest`: fixtures.

The laws of the house: a handler is a plain function and can be called as one. Nothing here opens a connection before it is asked to
enqueue. Importing a handler registers it nowhere. What a handler returns or raises is turned into a row in one place, `_outcome`, for
workers and tests alike. Payloads are checked at the door, decoded under the job's own responsibility, and never shown in an error.
"""

from __future__ import annotations

from handlers._async_client import AsyncClient
from handlers._backoff import Backoff
from handlers._binding import BindingError
from handlers._client import Client
from handlers._default import configure, default_client
from handlers._dispositions import (
    Abandon,
    Completed,
    Disposition,
    Failed,
    JobCancelled,
    JobDrained,
    JobInterrupted,
    JobTimeout,
    Nack,
    Poison,
    Retry,
    Snooze,
)
from handlers._dsn import NotConfiguredError
from handlers._durations import Duration
from handlers._handler import Handler, handler
from handlers._hooks import (
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
from handlers._job import Job
from handlers._only import Only
from handlers._outcome import Outcome
from handlers._own_connection import aenqueue_many_on, aenqueue_on, enqueue_many_on, enqueue_on
from handlers._payload import Json, PayloadError, ResultError, check_payload
from handlers._producer import Producer
from handlers._records import ExecutionLogEntry
from handlers._sealing import KeyMissingError, decrypt
from handlers._tables import TableStore

__all__ = [
    "Abandon",
    "AsyncClient",
    "Backoff",
    "BindingError",
    "Child",
    "Client",
    "Completed",
    "Disposition",
    "Duration",
    "ExecutionLogEntry",
    "Failed",
    "Handler",
    "Hook",
    "Job",
    "JobCancelled",
    "JobDrained",
    "JobInterrupted",
    "JobTimeout",
    "Json",
    "KeyMissingError",
    "Nack",
    "NotConfiguredError",
    "Only",
    "Outcome",
    "PayloadError",
    "Poison",
    "Producer",
    "ResultError",
    "Retry",
    "Snooze",
    "TableStore",
    "aenqueue_many_on",
    "aenqueue_on",
    "after_job",
    "before_claim",
    "before_job",
    "check_payload",
    "configure",
    "decrypt",
    "default_client",
    "enqueue_many_on",
    "enqueue_on",
    "handler",
    "middleware",
    "on_child_exit",
    "on_child_start",
    "on_death",
    "on_failure",
]
