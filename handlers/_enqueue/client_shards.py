"""One plain client for each database of a client with shards, and the choice between them."""

from __future__ import annotations

import time
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

import psycopg

from jobherd.handlers._enqueue.shards import ShardMap, shard_of
from jobherd.handlers._policy.durations import Duration, at_least_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.client_sessions import ClientSessions
    from jobherd.handlers._enqueue.statements import Statement


class ClientShards:
    """Chooses the client of a call.

    Args:
        shards: as for `Client`.
        make: makes the client of an address.
        own: client of the caller's connection, which then gets every call, if it is in the right database.
    """

    def __init__(
        self, shards: Mapping[str, str], make: Callable[[str], ClientSessions], own: ClientSessions | None
    ) -> None:
        self.map = ShardMap(shards)
        self._clients = {address: make(address) for address in self.map.addresses}
        self._own = own

    def on(self, own: ClientSessions) -> ClientShards:
        """Return the same databases for calls on the caller's connection."""
        found = copy(self)
        found._own = own  # noqa: SLF001  # of this class
        return found

    def of_chunk(self, chunk: Chunk) -> ClientSessions:
        """Return the client for these jobs. Raises ValueError if one database cannot have them."""
        return self._of(self.address_for(chunk))

    def address_for(self, chunk: Chunk) -> str:
        """Return the address of the database for these jobs. Raises ValueError if one database cannot have them."""
        address = self.map.address_for(chunk)
        self._ask(address)
        self.map.check_after(chunk, address)
        return address

    def of_flow(self, statement: Statement[int]) -> ClientSessions:
        """Return the client for a flow. Raises ValueError if one database cannot have it."""
        return self._of(self.flow_address(statement))

    def flow_address(self, statement: Statement[int]) -> str:
        """Return the address of the database for a flow. Raises ValueError if one database cannot have it."""
        address = self.map.flow_address(statement)
        self._ask(address)
        self.map.check_flow(statement, address)
        return address

    def about(self, job_id: int | None, statement: Statement[Any]) -> ClientSessions:
        """Return the client for a statement about a job or a flow."""
        if job_id is None:
            raise self.map.unrouted(statement)
        address = self._find(job_id)
        if "nodes" in statement.parameters:
            self.map.check_extension(statement, address)
        return self._of(address)

    def wait_many(self, job_ids: Iterable[int], timeout: Duration | None) -> dict[int, dict[str, Any]]:
        """Wait for jobs, one database after the other. See `Client.wait_many`."""
        ids = list(job_ids)
        until = None if timeout is None else time.monotonic() + at_least_zero(timeout, field="timeout")
        divided: dict[str, list[int]] = {}
        for id_ in ids:
            divided.setdefault(self._find(id_), []).append(id_)
        rows: dict[int, dict[str, Any]] = {}
        for address, some in divided.items():
            left = None if until is None else max(0.0, until - time.monotonic())
            rows |= self._of(address).wait_many(some, left)
        return {id_: rows[id_] for id_ in ids}

    def is_here(self, queue: str, here: int, dsn: str) -> bool:
        """Return whether a queue belongs to the database to which the caller is connected.

        True also if that database is not one of these.

        Args:
            queue: name of the queue.
            here: shard of that database; 0: none.
            dsn: its address, as the caller knows it.
        """
        address = self.map.address_of(queue)
        # the likely one first: another database may be away
        for unknown in sorted(self.map.unknown(), key=lambda one: one != dsn) if here else ():
            if self.map.find(here) is not None:
                break
            with suppress(psycopg.Error):
                self._ask(unknown)
        return self.map.find(here) in {None, address}

    def close(self) -> None:
        """Close the pools."""
        for client in self._clients.values():
            client.close()

    def _of(self, address: str) -> ClientSessions:
        self._ask(address)
        if self._own is None:
            return self._clients[address]
        self.map.check_own(self._own.run(self.map.show()), address)
        return self._own

    def _find(self, job_id: int) -> str:
        """Return the address of the database that gave this id. Raises ValueError if there is none."""
        number, problem = shard_of(job_id), None
        for address, within in self.map.to_ask(number):
            try:
                self._ask(address, within)
            except psycopg.Error as away:  # the job may be in another database
                problem = away
        if (found := self.map.find(number)) is None:
            raise problem or self.map.missing(job_id)
        return found

    def _ask(self, address: str, within: float | None = None) -> None:
        if not self.map.is_known(address):
            self.map.record(address, self._clients[address].run(self.map.show(), within=within))
