"""A few statements to the server and back: one exchange over libpq, prepared by name, without a driver's cursors between.

A job that starts on an idle machine waits for every line that runs cold, and a cursor runs through some hundreds of them: it cost a
tenth of a millisecond a claim. Waiting is done in Python, so that signals are heard while the server works. Several statements sent
together are one transaction, or each its own. Nothing here knows what they mean, and nothing is asked twice.
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
"""Seconds: a claim takes 0.2 ms on an idle machine, and to be put to sleep and woken again costs 0.05 to 0.1 ms more."""
_LONGEST: Final = 63
_SMALL: Final = 1000
"""Characters of an answer's value, beyond which reading it once more would take longer than it saves."""


class Silence(psycopg.OperationalError):
    """The server was taken for lost, for it has said nothing for so long: it may as well have been at work."""


class Wire:
    """The exchanges over one connection.

    connection: open, in autocommit mode, used by nobody else meanwhile. schema: where our tables are.
    prepared: false behind a pooler that hands each transaction to another session.
    patience: seconds without a byte from or to the server after which it is taken for lost; None: for ever. The kernel gives up only
        whom it hears nothing of: what stands between may confirm every packet and carry none.
    """

    def __init__(self, connection: psycopg.Connection[Any], schema: str, *, prepared: bool, patience: float | None = None) -> None:
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
        """How many rows the last statement has written or returned."""
        self._unheard: Sequence[tuple[str, Mapping[str, object]]] = ()
        """What was sent and is not answered yet."""
        self._pgconn.nonblocking = 1

    @property
    def owes(self) -> bool:
        """Whether an answer is still on the line."""
        return bool(self._unheard)

    def share(self, *first: tuple[str, Mapping[str, object]]) -> None:
        """A pooler stands between: each transaction may be on another backend, and begins with these; the columns of each answer are looked at.

        first: settings for the transaction alone, for the next one on that backend is a stranger's.
        """
        self._answers = self._answers or Answers()
        self._first = first

    def prepare(self, *names: str) -> None:
        """Make statements ready, so that the first job does not wait for it. Raises psycopg.Error."""
        for name in names:
            if self._prepared is not None and name not in self._prepared:
                self._pgconn.send_prepare(_label(name), sql.numbered(name, self._schema)[0].encode())
                # Unread, a refusal would show only when the name is used, or never: behind a pooler the name may be a statement of
                # another schema's.
                self._check(self._receive(), 1)
                self._prepared.add(name)

    def exchange(self, *letters: tuple[str, Mapping[str, object]], eager: bool = False) -> list[list[tuple[Any, ...]]]:
        """Send statements, each by its name in sql/queries with its parameters, and return the rows of each.

        eager: look for the answer again and again, for a moment, instead of sleeping: somebody waits.
        Several are one transaction. Raises psycopg.Error as the server or the connection says, ValueError for what cannot be sent.
        """
        results = self._talk(letters, eager=eager)
        self._check(results, len(letters))
        self.changed = results[-1].command_tuples or 0
        return [self._rows(result) for result in results]

    def exchange_alone(self, name: str) -> None:
        """Send a statement that may stand in no transaction with others, not with what each begins with either: a vacuum. Raises as `exchange`."""
        first, self._first = self._first, ()
        try:
            self.exchange((name, {}))
        finally:
            self._first = first

    def hurry(self, name: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Send the one statement for which somebody waits, and return its rows. Raises as `exchange`.

        On an idle machine every line runs cold. So what was made of the same parameters the last time is sent again as it is, and while the server works
        the last answer is read once more, which brings the code that will read this one back into the processor's caches.
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
        """Send statements together, each a transaction of its own, and return the rows of each, or why the server has refused it.

        Raises psycopg.Error if the connection breaks, whatever was done by then, ValueError for what cannot be sent.
        """
        results = self._talk(letters, each=True)
        if len(results) < len(letters):
            self._check(results, len(letters))
        return [self._said(result) for result in results]

    def exchange_ahead(
        self, first: tuple[str, Mapping[str, object]], behind: tuple[str, Mapping[str, object]]
    ) -> list[tuple[Any, ...]] | psycopg.Error:
        """Send two statements together, each a transaction of its own, and return the rows of the first, or why it was refused.

        The answer to the other is left on the line, and nothing else may be said there before `hear` has been called. Raises as `exchange_each`.
        """
        results = self._talk((first, behind), each=True, heard=1)
        if not results:
            self._check(results, 1)
        return self._said(results[0])

    def hear(self) -> list[tuple[Any, ...]] | psycopg.Error:
        """Wait for the answer that the last exchange has left on the line: return the rows, or why the server has refused it. Raises as `exchange_each`."""
        letters, self._unheard = self._unheard, ()
        results = self._hear(letters)
        if not results:
            self._check(results, 1)
        return self._said(results[0])

    def knock(self) -> None:
        """Wait for a word of the server's and ask nothing of it: also within a transaction, and one that has failed. Raises psycopg.OperationalError."""
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        pgconn.pipeline_sync()
        self._receive(syncs=1)
        if pgconn.status == pq.ConnStatus.BAD:
            self._check([], 1)
        pgconn.exit_pipeline_mode()

    def _talk(
        self, letters: Sequence[tuple[str, Mapping[str, object]]], *, each: bool = False, eager: bool = False, heard: int | None = None
    ) -> list[PGresult]:
        """Send them and return one result for each, as far as there are any.

        each: a transaction of its own. heard: wait for the answers to so many of them, with `each`; None: to all.
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
        self, letters: Sequence[tuple[str, Mapping[str, object]]], *, together: bool = True, each: bool = True, eager: bool = False
    ) -> list[PGresult]:
        """Return the answers to what was sent, as far as there are any."""
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
        """Raise what was refused, or psycopg.OperationalError if there are fewer answers than that."""
        for result in results:
            if result.status not in GOOD:
                raise self._refusal(result)
        if len(results) < expected:
            message = "the connection broke in the middle of an exchange"
            raise psycopg.OperationalError(message)

    def _refusal(self, result: PGresult) -> psycopg.Error:
        """Return why it was refused. A server's refusal has a code; what libpq says by itself of a connection that it has given up has none."""
        problem = error_from_result(result)
        if problem.sqlstate is None and self._pgconn.status == pq.ConnStatus.BAD:
            return psycopg.OperationalError(str(problem))
        return problem

    def _receive(self, *, syncs: int = 0, eager: bool = False) -> list[PGresult]:
        """Return the results up to so many syncs of a pipeline, or of one statement outside of one; fewer if the connection is broken.

        A statement that has answered may still be refused when its transaction is committed, by a deferred trigger or a full queue of
        notifications: then that refusal is the answer, in the place of all that the transaction has said. And until the commit's own
        answer is there nothing in it is done.
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
                    os.sched_yield()  # the server may need this processor
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
            if unsent == before:  # a slow line, on which something moves, is no lost one
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
    """A statement for which somebody waits: what was said the last time, and what was answered."""

    label: bytes
    order: tuple[str, ...]
    said: list[object] | None = None
    values: list[bytes | None] = field(default_factory=list)
    answer: PGresult | None = None


def _reach(letters: Sequence[tuple[str, object]], step: str) -> None:
    for name, _ in letters:
        failpoints.reach(f"{name}.{step}")


def _label(name: str) -> bytes:
    """Return what the server calls a statement: it knows 63 characters of a name, and one that was narrowed can have more."""
    return name.encode() if len(name) <= _LONGEST else f"{name[:40]}_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}".encode()


def _unsent(fd: int) -> int:
    """Return how many bytes the other side has not confirmed yet."""
    count: int = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))[0]
    return count


def _ended(results: list[PGresult], first: int = 0) -> list[PGresult]:
    """Return what a transaction has said: its refusal alone, if anything of it was refused; else nothing of so many statements that it began with."""
    for result in results:
        if result.status not in GOOD:
            return [result]
    return results[first:]
