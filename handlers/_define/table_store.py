"""Handlers for the rows of a table that the application owns, run by the same workers as the queue.

A `TableStore` describes the table and how its records are claimed, kept and failed. A function
decorated with `store.handler` processes one record. The application enqueues with its own INSERT.
Declaring a store opens no connection: a worker checks the table when it starts and reports what is
missing then. The statements are in `sql/table_templates/`; `jobherd.workers.stores.runner` runs them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jobherd.handlers._define.binding import BindingError
from jobherd.handlers._define.handler import Handler
from jobherd.handlers._define.table_record import Scanner
from jobherd.handlers._policy.backoff import Backoff
from jobherd.handlers._policy.costs import check_amounts
from jobherd.handlers._policy.durations import at_least_zero, positive
from jobherd.handlers._policy.names import check_kind, check_whole
from jobherd.handlers._policy.policy import check_policy
from jobherd.sql.table_statements import Names, check_name, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.handlers._define.claim_filter import Only
    from jobherd.handlers._define.hooks import Child
    from jobherd.handlers._define.table_record import Scan
    from jobherd.handlers._policy.durations import Duration
    from jobherd.handlers._policy.option_checks import Errors

NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
CONNECTION: Final = "connection"
"""A parameter of this name gets the connection of the transaction that locks the record."""


class TableStore:
    """Describes how workers claim and keep records of a table of yours.

    Args:
        name: name of the store and of its kind in logs and metrics: "example_job_worker_store".
        table: name of the table, with or without a schema. It has the columns of
            `jobherd.sql.table_statements.COLUMNS`, under any names, and any other columns.
        view: relation from which the handler's record is read, optionally with an alias:
            "example_jobs_with_names example_jobs". Default: the table.
        columns: SQL expressions to select from it ("example_jobs.id", "lower(name) AS name").
            Default: the fields of the dataclass in `scan`, or all columns. Never insert untrusted
            input.
        scan: makes a record from a row: a dataclass, or a function of a dict. Default: the dict.
        order_by: SQL expression over the table that decides which record is next. Default: its id.
        alternate_columns: the table's names for Jobherd's columns, such as {"state": "status"}.
        interval: how often workers look for ready records, default "1s". With the trigger that
            `jobherd check --print-sql` prints, they are notified at once.
        max_retries: how often a failed record is retried, default 0.
        retry_after: duration before such a retry, default 0.
        stalled_max_age: age at which a running record that no transaction holds returns to the
            queue, default "30s".
        heartbeat_interval: how often a running record is marked as running, default "5s". Must be
            less than `stalled_max_age`.
        reset_interval: how often stalled records are looked for, default "30s". If the supervisor
            sees the process die, the record returns to the queue at once.
        max_resets: how often a record returns to the queue that way, default 5; then it fails.
        cancel_interval: how often running records are checked for being canceled or deleted,
            default "1s". 0: never.

    Raises:
        TypeError, ValueError: an option is invalid. The message names the field, the value and the
            fix.

    Example:
        >>> store = TableStore("example_job_worker_store", table="example_jobs", alternate_columns={"state": "status"})
        >>> @store.handler(timeout="1m")
        ... def work(record):
        ...     print(record["id"])
        >>> work({"id": 7})
        7
    """

    def __init__(
        self,
        name: str,
        *,
        table: str,
        view: str | None = None,
        columns: Sequence[str] | None = None,
        scan: Scan | None = None,
        order_by: str | None = None,
        alternate_columns: Mapping[str, str] | None = None,
        interval: Duration = "1s",
        max_retries: int = 0,
        retry_after: Duration = 0,
        stalled_max_age: Duration = "30s",
        heartbeat_interval: Duration = "5s",
        reset_interval: Duration = "30s",
        max_resets: int = 5,
        cancel_interval: Duration = "1s",
    ) -> None:
        self.name = check_kind(name)
        self.scanner = Scanner(scan)
        renames = {} if alternate_columns is None else dict(alternate_columns)
        self.names: Names = names_of(
            table=check_name(table, field="table"), view=view, columns=(), order_by=order_by, alternate_columns=renames
        )
        chosen = self._chosen(columns)
        self.names = names_of(table=table, view=view, columns=chosen, order_by=order_by, alternate_columns=renames)
        self.interval = positive(interval, field="interval")
        self.max_retries = check_whole(max_retries, field="max_retries", least=0)
        self.retry_after = at_least_zero(retry_after, field="retry_after")
        self.stalled_max_age = positive(stalled_max_age, field="stalled_max_age")
        self.heartbeat_interval = positive(heartbeat_interval, field="heartbeat_interval")
        self.reset_interval = positive(reset_interval, field="reset_interval")
        self.max_resets = check_whole(max_resets, field="max_resets", least=0)
        self.asked: Callable[[Child], Only | bool | None] | None = None
        self.cancel_interval = at_least_zero(cancel_interval, field="cancel_interval")
        if self.heartbeat_interval >= self.stalled_max_age:
            message = (
                f"heartbeat_interval ({self.heartbeat_interval:g} s) must be less than stalled_max_age "
                f"({self.stalled_max_age:g} s), "
                "or records that are in work would be taken for stalled"
            )
            raise ValueError(message)

    def handler(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        timeout: Duration = "5m",
        retry_on: Errors | type[BaseException] | None = None,
        poison_on: Errors | type[BaseException] = (),
        cost: Mapping[str, float] = NOTHING,
        flags: Sequence[str] = (),
    ) -> Any:
        """Make a function the handler of this store's records.

        Its first parameter gets the record; a parameter annotated `Job` may come before it. A
        parameter called `connection` gets the psycopg connection of the transaction that holds the
        record: writes on it commit together with the record's state, or not at all.

        Args:
            function: the function, if the decorator is used without options.
            timeout: longest duration of one attempt, default "5m".
            retry_on: only these exceptions are retried, as often as the store's `max_retries` says.
                Default: all.
            poison_on: these exceptions fail the record at once. Default: none.
            cost: resources of the host that a record uses, amounts by name, for `before_claim`
                hooks. Default: nothing.
            flags: your own labels, for `before_claim` hooks. Default: none.

        Raises:
            TypeError, ValueError: an option is invalid. Raised when the function is decorated.
        """
        policy = check_policy(
            timeout=timeout,
            max_attempts=min(self.max_retries + 1, 32767),
            max_crashes=min(self.max_resets + 1, 32767),
            backoff=Backoff(base=self.retry_after, factor=1.0, jitter=0.0, cap=self.retry_after),
            retry_on=retry_on,
            poison_on=poison_on,
            keep_completed=0,
            keep_failed=0,
            cost=check_amounts(cost, field="cost"),  # a store knows no payload to compute it from
            flags=flags,
        )

        def decorate(function: Callable[..., Any]) -> TableHandler:
            return TableHandler(function, self, policy)

        return decorate if function is None else decorate(function)

    def before_claim(self, function: Callable[[Child], Only | bool | None], /) -> Callable[[Child], Only | bool | None]:
        """Call a function before each claim of a record, to restrict it.

        If it returns False, no record is claimed. If it returns an `Only` with a condition, only
        records that match are. The condition is SQL over the table, under the alias of the view. If
        the function raises, no record is claimed.

        Args:
            function: gets the `Child` that claims; returns None or True, False, or an `Only`.

        >>> store = TableStore("example_job_worker_store", table="example_jobs")
        >>> @store.before_claim
        ... def small_ones(child):
        ...     return Only(condition="example_jobs.size < %(room)s", parameters={"room": 900})
        """
        self.asked = function
        return function

    def _chosen(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Return the expressions to select; by default one column for each field of the record."""
        if isinstance(columns, str):
            message = f"columns takes a list of expressions, not one text: columns=[{columns!r}]"
            raise TypeError(message)
        if columns is not None:
            for each in columns:
                if not isinstance(each, str) or not each.strip():
                    message = f"columns takes SQL expressions as text, like 'example_jobs.id', not {each!r}"
                    raise TypeError(message)
            return tuple(columns)
        return tuple(self._column_of(each) for each in self.scanner.fields)

    def _column_of(self, field: str) -> str:
        theirs = dict(self.names.columns).get(field, field)
        return f'"{self.names.seen}"."{theirs}"' + (f' AS "{field}"' if theirs != field else "")

    def __repr__(self) -> str:
        return f"<TableStore {self.name} on {'.'.join(self.names.table)}>"


@dataclass(slots=True)
class Held:
    """The record that a worker holds, before it is scanned."""

    row: Mapping[str, Any]
    connection: Any


class TableHandler(Handler[Any, Any, Any]):
    """A function that processes the records of a store. Created by `TableStore.handler`.

    It is called like the function, with a record.
    """

    def __init__(self, function: Callable[..., Any], store: TableStore, policy: Any) -> None:
        super().__init__(function, store.name, policy)
        self.store = store
        self.held: Held | None = None
        """The record the worker is about to run. The scan is user code, so it runs under the job's
        timeout."""
        parameters = self.signature.parameters
        records = [each.name for each in parameters if each.name != CONNECTION]
        further = [each for each in records[1:] if each in self.signature.required]
        if not records or further or self.signature.open:
            message = (
                f"{self.signature.name} is the handler of a table: its parameters are the record and, "
                f"if it wants it, {CONNECTION}, "
                f"not ({', '.join(map(str, inspect.signature(function).parameters.values()))})"
            )
            raise TypeError(message)
        self._record = records[0]
        self.transactional = CONNECTION in self.signature.names

    @property
    def binding(self) -> Any:
        """The object that binds the record: the handler itself."""
        return self

    def problems(self) -> list[str]:
        """Return an empty list: a record comes from its store and has no payload."""
        return []

    def bind(self, _payload: object) -> dict[str, Any]:
        """Return the arguments for the held record.

        Raises BindingError if there is none, or what the scan raises.
        """
        held = self.held
        if held is None:
            message = (
                f"{self.kind} works the records of a table: a job of that kind cannot be enqueued, "
                f"insert into {self.store.names.quoted}"
            )
            raise BindingError(message)
        arguments = {self._record: self.store.scanner.record(held.row)}
        return arguments | {CONNECTION: held.connection} if self.transactional else arguments

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        message = f"{self.kind} works the records of a table: insert a row into {self.store.names.quoted} instead"
        raise TypeError(message)

    enqueue = enqueue_many = enqueue_stream = aenqueue = aenqueue_many = aenqueue_stream = options = _refuse
