"""Sends statements over libpq, prepared by name and without psycopg cursors.

A job that starts on an idle machine waits for every line of code that is not in the processor's
caches. A cursor runs through several hundred of them, which cost a tenth of a millisecond per
claim. Several statements sent together are one transaction, or one transaction each. This module
does not know what the statements mean, and sends nothing twice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from jobherd import sql
from jobherd.sql.parameters import as_text
from jobherd.workers.database.receiver import Receiver
from jobherd.workers.database.response_check import GOOD, Answers
from jobherd.workers.system import failpoints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.pq.abc import PGconn, PGresult

Rows: TypeAlias = "list[tuple[Any, ...]]"
Request: TypeAlias = "tuple[str, Mapping[str, object]]"
"""A statement: its name in sql/queries, and its parameters."""

_LONGEST: Final = 63
_SMALL: Final = 1000
"""Most characters of a value in the last row of a response that is read a second time. For longer
values, the second read would take longer than it saves. The first row of a claim has no payload.
"""


class Wire:
    """The exchanges over one connection.

    connection: open, in autocommit mode, and not used by other code meanwhile.
    schema: where Jobherd's tables are.
    prepared: false behind a pooler that gives each transaction to another session.
    patience: as for `Receiver`.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], schema: str, *, prepared: bool, patience: float | None = None
    ) -> None:
        self._pgconn: PGconn = connection.pgconn
        self.receiver = Receiver(self._pgconn, patience)
        self._transformer = Transformer(connection)
        self._schema = schema
        self._prepared: set[str] | None = set() if prepared else None
        self._urgent: dict[str, _UrgentStatement] = {}
        self._answers = None if prepared else Answers()
        self._first: Sequence[Request] = ()
        self.changed = 0
        """Number of rows that the last statement wrote or returned."""
        self._pending: Sequence[Request] = ()
        """Statements that were sent and whose responses were not read yet."""
        self._pgconn.nonblocking = 1

    @property
    def is_pending(self) -> bool:
        """Whether a response is still to be read."""
        return bool(self._pending)

    def begin_each_with(self, *first: Request) -> None:
        """Prepare for a pooler: each transaction may run on another backend.

        Each transaction then begins with the statements `first`, and the columns of each response
        are checked.
        first: settings for the transaction only, because the next one on that backend is another
        client's.
        """
        self._answers = self._answers or Answers()
        self._first = first

    def prepare(self, *names: str) -> None:
        """Prepare statements, so that the first job does not wait for it. Raises psycopg.Error."""
        for name in names:
            if self._prepared is not None and name not in self._prepared:
                self._pgconn.send_prepare(_prepared_name(name), sql.numbered(name, self._schema)[0].encode())
                # Otherwise an error would show only when the name is used, or never: behind a
                # pooler, the name may belong to a statement of another schema.
                self._check(self.receiver.receive(), 1)
                self._prepared.add(name)

    def exchange(self, *requests: Request, eager: bool = False) -> list[Rows]:
        """Send statements as one transaction and return the rows of each.

        eager: poll for the response for a short time before sleeping, because a producer waits.
        Raises psycopg.Error for an error of the server or the connection, ValueError for parameters
        that cannot be sent.
        """
        results = self._send(requests, eager=eager)
        self._check(results, len(requests))
        self.changed = results[-1].command_tuples or 0
        return [self._rows(result) for result in results]

    def exchange_alone(self, name: str) -> None:
        """Send a statement that cannot run in a transaction with others: VACUUM.

        Not even the statements of `begin_each_with` precede it. Raises as `exchange`.
        """
        first, self._first = self._first, ()
        try:
            self.exchange((name, {}))
        finally:
            self._first = first

    def exchange_urgent(self, name: str, parameters: Mapping[str, object]) -> Rows:
        """Send one statement for which a producer waits, and return its rows. Raises as `exchange`.

        On an idle machine every line runs without the processor's caches. So encoded parameters are
        reused if they equal the last ones. While the server works, the last response is read again,
        which loads the code that will read the next one into the caches.
        """
        if self._prepared is None or self._first:
            return self.exchange((name, parameters), eager=True)[0]
        known = self._urgent.get(name)
        if known is None:
            self.prepare(name)
            known = self._urgent[name] = _UrgentStatement(_prepared_name(name), sql.numbered(name, self._schema)[1])
        values = [parameters[key] for key in known.order]
        if values != known.values:
            known.values, known.encoded = values, [as_text(value) for value in values]
        if failpoints.armed:
            _reach(((name, parameters),), "before")
        self._pgconn.send_query_prepared(known.prepared_name, known.encoded, result_format=pq.Format.BINARY)
        self._pgconn.flush()
        if failpoints.armed:
            _reach(((name, parameters),), "sent")
        if known.response is not None:
            self._rows(known.response)
        results = self.receiver.receive(eager=True)
        if failpoints.armed:
            _reach(((name, parameters),), "done")
        self._check(results, 1)
        if self._answers is not None:
            self._answers.check(name, results[-1])
        self.changed = results[-1].command_tuples or 0
        rows = self._rows(results[-1])
        if rows and all(len(value) <= _SMALL for value in rows[-1] if isinstance(value, str | bytes)):
            known.response = results[-1]
        return rows

    def exchange_each(self, *requests: Request) -> list[Rows | psycopg.Error]:
        """Send statements together, each as its own transaction, and return the rows or the error of each.

        Raises psycopg.Error if the connection breaks, even if statements were executed, and
        ValueError for parameters that cannot be sent.
        """
        results = self._send(requests, each=True)
        if len(results) < len(requests):
            self._check(results, len(requests))
        return [self._rows_or_error(result) for result in results]

    def exchange_ahead(self, first: Request, second: Request) -> Rows | psycopg.Error:
        """Send two statements, each as its own transaction, and return the rows or error of the first.

        The response to the second one stays unread, and nothing else may be sent before
        `receive_pending` has been called. Raises as `exchange_each`.
        """
        results = self._send((first, second), each=True, awaited=1)
        if not results:
            self._check(results, 1)
        return self._rows_or_error(results[0])

    def receive_pending(self) -> Rows | psycopg.Error:
        """Wait for the response that `exchange_ahead` left unread, and return its rows or its error.

        Raises as `exchange_each`.
        """
        requests, self._pending = self._pending, ()
        results = self._receive(requests)
        if not results:
            self._check(results, 1)
        return self._rows_or_error(results[0])

    def ping(self) -> None:
        """Wait for a response of the server without a statement. Raises psycopg.OperationalError.

        This also works within a transaction, even one that has failed.
        """
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        pgconn.pipeline_sync()
        self.receiver.receive(syncs=1)
        if pgconn.status == pq.ConnStatus.BAD:
            self._check([], 1)
        pgconn.exit_pipeline_mode()

    def _send(
        self, requests: Sequence[Request], *, each: bool = False, eager: bool = False, awaited: int | None = None
    ) -> list[PGresult]:
        """Send statements and return one result for each, as far as there are any.

        each: one transaction for each statement.
        awaited: with `each`, wait for the responses to this many statements; None: to all.
        """
        pgconn = self._pgconn
        transactions = [[*self._first, one] for one in requests] if each else [[*self._first, *requests]]
        sendable = []
        for transaction in transactions:
            for name, parameters in transaction:
                text, order = sql.numbered(name, self._schema)
                sendable.append((name, text, [as_text(parameters[key]) for key in order]))
        self.prepare(*(name for name, _, _ in sendable))
        pipelined = len(sendable) > 1
        size = len(transactions[0])
        if failpoints.armed:
            _reach(requests, "before")
        if pipelined:
            pgconn.enter_pipeline_mode()
        for number, (name, text, values) in enumerate(sendable, 1):
            if self._prepared is None:
                pgconn.send_query_params(text.encode(), values, result_format=pq.Format.BINARY)
            else:
                pgconn.send_query_prepared(_prepared_name(name), values, result_format=pq.Format.BINARY)
            if pipelined and number % size == 0:
                pgconn.pipeline_sync()
        if failpoints.armed:
            pgconn.flush()
            _reach(requests, "sent")
        if awaited is not None:
            requests, self._pending = requests[:awaited], requests[awaited:]
        return self._receive(requests, pipelined=pipelined, each=each, eager=eager)

    def _receive(
        self, requests: Sequence[Request], *, pipelined: bool = True, each: bool = True, eager: bool = False
    ) -> list[PGresult]:
        """Return the responses to what was sent, as far as there are any."""
        syncs = pipelined and (len(requests) if each else 1)
        results = self.receiver.receive(syncs=syncs, eager=eager, hidden=len(self._first))
        if failpoints.armed:
            _reach(requests, "done")
        if self._answers is not None:
            for (name, _), result in zip(requests, results, strict=False):
                self._answers.check(name, result)
        if pipelined and not self._pending and self._pgconn.status == pq.ConnStatus.OK:
            self._pgconn.exit_pipeline_mode()
        return results

    def _rows_or_error(self, result: PGresult) -> Rows | psycopg.Error:
        return self._rows(result) if result.status in GOOD else self._error(result)

    def _check(self, results: list[PGresult], expected: int) -> None:
        """Raise the first error among the results, or OperationalError if there are fewer than `expected`."""
        for result in results:
            if result.status not in GOOD:
                raise self._error(result)
        if len(results) < expected:
            message = "the connection broke in the middle of an exchange"
            raise psycopg.OperationalError(message)

    def _error(self, result: PGresult) -> psycopg.Error:
        """Return the error of a result.

        An error of the server has a code. An error that libpq itself reports about a lost
        connection has none.
        """
        problem = error_from_result(result)
        if problem.sqlstate is None and self._pgconn.status == pq.ConnStatus.BAD:
            return psycopg.OperationalError(str(problem))
        return problem

    def _rows(self, result: PGresult) -> Rows:
        if not result.ntuples:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)


@dataclass(slots=True)
class _UrgentStatement:
    """A statement for which a producer waits: its last parameters and its last response."""

    prepared_name: bytes
    order: tuple[str, ...]
    values: list[object] | None = None
    encoded: list[bytes | None] = field(default_factory=list)
    response: PGresult | None = None


def _reach(requests: Sequence[tuple[str, object]], step: str) -> None:
    for name, _ in requests:
        failpoints.reach(f"{name.rpartition('/')[2]}.{step}")


def _prepared_name(name: str) -> bytes:
    """Return the prepared statement's name. The server uses 63 characters, and a narrowed name can be longer."""
    if len(name) > _LONGEST:
        name = f"{name[:40]}_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
    return name.encode()
