"""`client_shards` for asyncio. The two variants differ only in `await`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg

from jobherd.handlers._enqueue.shards import ShardMap, shard_of
from jobherd.handlers._policy.durations import Duration, at_least_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jobherd.handlers._enqueue.async_client import AsyncClient
    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.statements import Statement


class AsyncClientShards:
    """Chooses the client of a call.

    Args:
        shards: as for `Client`.
        make: makes the client of an address.
        own: client of the caller's connection, which then gets every call, if it is in the right database.
    """

    def __init__(self, shards: Mapping[str, str], make: Callable[[str], AsyncClient], own: AsyncClient | None) -> None:
        self.map = ShardMap(shards)
        self._clients = {address: make(address) for address in self.map.addresses}
        self._own = own

    async def of_chunk(self, chunk: Chunk) -> AsyncClient:
        """Return the client for these jobs. Raises ValueError if one database cannot have them."""
        address = self.map.address_for(chunk)
        await self._ask(address)
        self.map.check_after(chunk, address)
        return await self._of(address)

    async def of_flow(self, statement: Statement[int]) -> AsyncClient:
        """Return the client for a flow. Raises ValueError if one database cannot have it."""
        address = self.map.flow_address(statement)
        await self._ask(address)
        self.map.check_flow(statement, address)
        return await self._of(address)

    async def about(self, job_id: int | None, statement: Statement[Any]) -> AsyncClient:
        """Return the client for a statement about a job or a flow."""
        if job_id is None:
            raise self.map.unrouted(statement)
        address = await self._find(job_id)
        if "nodes" in statement.parameters:
            self.map.check_extension(statement, address)
        return await self._of(address)

    async def wait_many(self, job_ids: Iterable[int], timeout: Duration | None) -> dict[int, dict[str, Any]]:  # noqa: ASYNC109
        """Wait for jobs, one database after the other. See `Client.wait_many`."""
        ids = list(job_ids)
        until = None if timeout is None else time.monotonic() + at_least_zero(timeout, field="timeout")
        divided: dict[str, list[int]] = {}
        for id_ in ids:
            divided.setdefault(await self._find(id_), []).append(id_)
        rows: dict[int, dict[str, Any]] = {}
        for address, some in divided.items():
            left = None if until is None else max(0.0, until - time.monotonic())
            rows |= await (await self._of(address)).wait_many(some, left)
        return {id_: rows[id_] for id_ in ids}

    async def close(self) -> None:
        """Close the pools."""
        for client in self._clients.values():
            await client.close()

    async def _of(self, address: str) -> AsyncClient:
        await self._ask(address)
        if self._own is None:
            return self._clients[address]
        self.map.check_own(await self._own.run(self.map.show()), address)
        return self._own

    async def _find(self, job_id: int) -> str:
        """Return the address of the database that gave this id. Raises ValueError if there is none."""
        number, problem = shard_of(job_id), None
        for address, within in self.map.to_ask(number):
            try:
                await self._ask(address, within)
            except psycopg.Error as away:  # the job may be in another database
                problem = away
        if (found := self.map.find(number)) is None:
            raise problem or self.map.missing(job_id)
        return found

    async def _ask(self, address: str, within: float | None = None) -> None:
        if not self.map.is_known(address):
            self.map.record(address, await self._clients[address].run(self.map.show(), within=within))
