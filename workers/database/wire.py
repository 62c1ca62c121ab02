"""Sends statements over libpq and reads the responses, prepared by name and without psycopg cursors.

A job that starts on an idle machine waits for every line of code that is not in the processor's
caches. A cursor runs through several hundred of them, which cost a tenth of a millisecond per
claim. Waiting is done in Python, so that signals are handled while the server works. Several
statements sent together are one transaction, or one transaction each. This module does not know
what the statements mean, and sends nothing twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import struct
import termios
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from jobherd import sql
from jobherd.sql.parameters import as_text
from jobherd.workers.database.response_check import GOOD, Answers
from jobherd.workers.system import failpoints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.pq.abc import PGconn, PGresult

EAGER: Final = 0.0004
"""Seconds of polling before sleeping. A claim takes 0.2 ms on an idle machine, and being put to
sleep and woken again costs 0.05 to 0.1 ms more.
"""
_LONGEST: Final = 63
_SMALL: Final = 1000
"""Most characters of a value in a response that is read a second time. For longer values, the
second read would take longer than it saves.
"""


class Silence(psycopg.OperationalError):
    """The connection was given up after a silence of the server, which may still be working."""


class Wire:
    """The exchanges over one connection.

    connection: open, in autocommit mode, and not used by other code meanwhile.
    schema: where Jobherd's tables are.
    prepared: false behind a pooler that gives each transaction to another session.
    patience: seconds without a byte from or to the server after which the connection counts as
    lost; None: never. The kernel gives up only a connection that gets no acknowledgement: a device
    in between may acknowledge every packet and forward none.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], schema: str, *, prepared: bool, patience: float | None = None
    ) -> None:
        self._pgconn: PGconn = connection.pgconn
        self._transformer = Transformer(connection)
        self._schema = schema
        self._prepared: set[str] | None = set() if prepared else None
        self._readable = select.poll()
        self._readable.register(self._pgconn.socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)
        self._urgent: dict[str, _Urgent] = {}
        self.patience = patience
        self._answers = None if prepared else Answers()
        self._first: Sequence[tuple[str, Mapping[str, object]]] = ()
        self.changed = 0
        """Number of rows that the last statement wrote or returned."""
        self._unheard: Sequence[tuple[str, Mapping[str, object]]] = ()
        """Statements that were sent and are not answered yet."""
        self._pgconn.nonblocking = 1

    @property
    def owes(self) -> bool:
        """Whether a response is still to be read."""
        return bool(self._unheard)

    def share(self, *first: tuple[str, Mapping[str, object]]) -> None:
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
                self._pgconn.send_prepare(_label(name), sql.numbered(name, self._schema)[0].encode())
                # Otherwise an error would show only when the name is used, or never: behind a
                # pooler, the name may belong to a statement of another schema.
                self._check(self._receive(), 1)
                self._prepared.add(name)

    def exchange(self, *letters: tuple[str, Mapping[str, object]], eager: bool = False) -> list[list[tuple[Any, ...]]]:
        """Send statements as one transaction and return the rows of each.

        Each is given by its name in sql/queries, with its parameters.
        eager: poll for the response for a short time before sleeping, because a producer waits.
        Raises psycopg.Error for an error of the server or the connection, ValueError for parameters
        that cannot be sent.
        """
        results = self._talk(letters, eager=eager)
        self._check(results, len(letters))
        self.changed = results[-1].command_tuples or 0
        return [self._rows(result) for result in results]

    def exchange_alone(self, name: str) -> None:
        """Send a statement that cannot run in a transaction with others: VACUUM.

        Not even the statements of `share` precede it. Raises as `exchange`.
        """
        first, self._first = self._first, ()
        try:
            self.exchange((name, {}))
        finally:
            self._first = first

    def hurry(self, name: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
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
            known = self._urgent[name] = _Urgent(_label(name), sql.numbered(name, self._schema)[1])
        said = [parameters[key] for key in known.order]
        if said != known.said:
            known.said, known.values = said, [as_text(value) for value in said]
        if failpoints.armed:
            _reach(((name, parameters),), "before")
        self._pgconn.send_query_prepared(known.label, known.values, result_format=pq.Format.BINARY)
        self._pgconn.flush()
        if failpoints.armed:
            _reach(((name, parameters),), "sent")
        if known.answer is not None:
            self._rows(known.answer)
        results = self._receive(eager=True)
        if failpoints.armed:
            _reach(((name, parameters),), "done")
        self._check(results, 1)
        if self._answers is not None:
            self._answers.check(name, results[-1])
        self.changed = results[-1].command_tuples or 0
        rows = self._rows(results[-1])
        if rows and all(len(value) <= _SMALL for value in rows[0] if isinstance(value, str | bytes)):
            known.answer = results[-1]
        return rows

    def exchange_each(self, *letters: tuple[str, Mapping[str, object]]) -> list[list[tuple[Any, ...]] | psycopg.Error]:
        """Send statements together, each as its own transaction, and return the rows or the error of each.

        Raises psycopg.Error if the connection breaks, even if statements were executed, and
        ValueError for parameters that cannot be sent.
        """
        results = self._talk(letters, each=True)
        if len(results) < len(letters):
            self._check(results, len(letters))
        return [self._said(result) for result in results]

    def exchange_ahead(
        self, first: tuple[str, Mapping[str, object]], behind: tuple[str, Mapping[str, object]]
    ) -> list[tuple[Any, ...]] | psycopg.Error:
        """Send two statements, each as its own transaction, and return the rows or error of the first.

        The response to the other one stays unread, and nothing else may be sent before `hear` has
        been called. Raises as `exchange_each`.
        """
        results = self._talk((first, behind), each=True, heard=1)
        if not results:
            self._check(results, 1)
        return self._said(results[0])

    def hear(self) -> list[tuple[Any, ...]] | psycopg.Error:
        """Wait for the response that the last exchange left unread, and return its rows or its error.

        Raises as `exchange_each`.
        """
        letters, self._unheard = self._unheard, ()
        results = self._hear(letters)
        if not results:
            self._check(results, 1)
        return self._said(results[0])

    def knock(self) -> None:
        """Wait for a response of the server without a statement. Raises psycopg.OperationalError.

        This also works within a transaction, even one that has failed.
        """
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        pgconn.pipeline_sync()
        self._receive(syncs=1)
        if pgconn.status == pq.ConnStatus.BAD:
            self._check([], 1)
        pgconn.exit_pipeline_mode()

    def _talk(
        self,
        letters: Sequence[tuple[str, Mapping[str, object]]],
        *,
        each: bool = False,
        eager: bool = False,
        heard: int | None = None,
    ) -> list[PGresult]:
        """Send statements and return one result for each, as far as there are any.

        each: one transaction for each statement.
        heard: with `each`, wait for the responses to this many statements; None: to all.
        """
        pgconn = self._pgconn
        transactions = [[*self._first, letter] for letter in letters] if each else [[*self._first, *letters]]
        sendable = []
        for transaction in transactions:
            for name, parameters in transaction:
                text, order = sql.numbered(name, self._schema)
                sendable.append((name, text, [as_text(parameters[key]) for key in order]))
        self.prepare(*(name for name, _, _ in sendable))
        together = len(sendable) > 1
        size = len(transactions[0])
        if failpoints.armed:
            _reach(letters, "before")
        if together:
            pgconn.enter_pipeline_mode()
        for number, (name, text, values) in enumerate(sendable, 1):
            if self._prepared is None:
                pgconn.send_query_params(text.encode(), values, result_format=pq.Format.BINARY)
            else:
                pgconn.send_query_prepared(_label(name), values, result_format=pq.Format.BINARY)
            if together and number % size == 0:
                pgconn.pipeline_sync()
        if failpoints.armed:
            pgconn.flush()
            _reach(letters, "sent")
        if heard is not None:
            letters, self._unheard = letters[:heard], letters[heard:]
        return self._hear(letters, together=together, each=each, eager=eager)

    def _hear(
        self,
        letters: Sequence[tuple[str, Mapping[str, object]]],
        *,
        together: bool = True,
        each: bool = True,
        eager: bool = False,
    ) -> list[PGresult]:
        """Return the responses to what was sent, as far as there are any."""
        results = self._receive(syncs=together and (len(letters) if each else 1), eager=eager)
        if failpoints.armed:
            _reach(letters, "done")
        if self._answers is not None:
            for (name, _), result in zip(letters, results, strict=False):
                self._answers.check(name, result)
        if together and not self._unheard and self._pgconn.status == pq.ConnStatus.OK:
            self._pgconn.exit_pipeline_mode()
        return results

    def _said(self, result: PGresult) -> list[tuple[Any, ...]] | psycopg.Error:
        return self._rows(result) if result.status in GOOD else self._refusal(result)

    def _check(self, results: list[PGresult], expected: int) -> None:
        """Raise the first error among the results.

        If there are fewer than `expected` results, raise psycopg.OperationalError.
        """
        for result in results:
            if result.status not in GOOD:
                raise self._refusal(result)
        if len(results) < expected:
            message = "the connection broke in the middle of an exchange"
            raise psycopg.OperationalError(message)

    def _refusal(self, result: PGresult) -> psycopg.Error:
        """Return the error of a result.

        An error of the server has a code. An error that libpq itself reports about a lost
        connection has none.
        """
        problem = error_from_result(result)
        if problem.sqlstate is None and self._pgconn.status == pq.ConnStatus.BAD:
            return psycopg.OperationalError(str(problem))
        return problem

    def _receive(self, *, syncs: int = 0, eager: bool = False) -> list[PGresult]:
        """Return the results of a pipeline up to `syncs` syncs, or of one statement outside a pipeline.

        There are fewer if the connection is broken. A statement that has returned rows can still
        fail when its transaction commits, through a deferred trigger or a full notification queue.
        Then that error replaces all results of the transaction. Before the response to the commit,
        nothing in the transaction counts as done.
        """
        together = syncs > 0
        pgconn = self._pgconn
        results: list[PGresult] = []
        uncommitted: list[PGresult] = []
        while pgconn.flush():
            self._wait(self._either)
            pgconn.consume_input()
        until = time.monotonic() + EAGER if eager else 0.0
        while True:
            while pgconn.is_busy():
                if until and time.monotonic() < until:
                    os.sched_yield()  # The server may need this processor.
                else:
                    self._wait(self._readable)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                if not together:
                    return _ended(uncommitted)
                if pgconn.status == pq.ConnStatus.BAD:
                    return results + [one for one in _ended(uncommitted) if one.status not in GOOD]
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                results += _ended(uncommitted, len(self._first))
                uncommitted = []
                syncs -= 1
                if not syncs:
                    return results
            else:
                uncommitted.append(result)
                if not together and result.status not in GOOD and pgconn.status == pq.ConnStatus.BAD:
                    return _ended(uncommitted)

    def _wait(self, ready: select.poll) -> None:
        if self.patience is None:
            ready.poll()
            return
        before = -1
        while not ready.poll(self.patience * 500):
            unsent = _unsent(self._pgconn.socket)
            if unsent == before:  # A slow connection on which data still moves is not lost.
                message = f"no word from the server for {self.patience:g} s"
                raise Silence(message)
            before = unsent

    def _rows(self, result: PGresult) -> list[tuple[Any, ...]]:
        if not result.ntuples:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)


@dataclass(slots=True)
class _Urgent:
    """A statement for which a producer waits: its last parameters and its last response."""

    label: bytes
    order: tuple[str, ...]
    said: list[object] | None = None
    values: list[bytes | None] = field(default_factory=list)
    answer: PGresult | None = None


def _reach(letters: Sequence[tuple[str, object]], step: str) -> None:
    for name, _ in letters:
        failpoints.reach(f"{name.rpartition('/')[2]}.{step}")


def _label(name: str) -> bytes:
    """Return the prepared statement's name.

    The server uses 63 characters, and a narrowed name can be longer.
    """
    return (
        name.encode()
        if len(name) <= _LONGEST
        else f"{name[:40]}_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}".encode()
    )


def _unsent(fd: int) -> int:
    """Return how many bytes the other side has not acknowledged yet."""
    count: int = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))[0]
    return count


def _ended(results: list[PGresult], first: int = 0) -> list[PGresult]:
    """Return the results of a transaction.

    If a statement failed, that is only its error. Otherwise the results of the `first` statements
    that the transaction began with are left out.
    """
    for result in results:
        if result.status not in GOOD:
            return [result]
    return results[first:]
