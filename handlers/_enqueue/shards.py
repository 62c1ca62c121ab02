"""Queues divided over several databases: which database has a queue, and which one has a job.

An id says which shard its database is: `jobherd migrate --shard 2/4` gives each database a range
(`sql/schema/47_shards.sql`). Which database is which shard is queried and not configured, so
no list of addresses can be in the wrong order. This module must not use a database: the synchronous
and the asynchronous client query theirs, and share everything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from jobherd.handlers._enqueue.options import check_id
from jobherd.handlers._enqueue.statements import Statement
from jobherd.handlers._policy.names import shown
from jobherd.handlers._values.json_form import type_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from jobherd.handlers._enqueue.bulk import Chunk

WIDTH: Final = 10**13
"""Ids of one shard."""
MOST: Final = 899
"""The last shard: its ids are below 2**53, up to which JSON has exact numbers."""
BRIEFLY: Final = 1.0
"""Seconds to wait for each database before any of them is waited for with the client's timeout."""
_PATTERN: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,62}\*?|\*")
_USUAL: Final = "default"
"""Queue of a job of a flow that names none."""


def shard_of(job_id: int) -> int:
    """Return the shard that gave this id.

    >>> shard_of(42), shard_of(20_000_000_000_042)
    (1, 2)
    """
    return max(1, check_id(job_id) // WIDTH)


def first_id(shard: int) -> int:
    """Return the lowest id of a shard."""
    return 1 if shard == 1 else shard * WIDTH


class ShardMap:
    """The argument `shards` of a client, and which shard each database has turned out to be.

    shards: addresses by queue or prefix with a `*`. The first match in order applies.
    """

    def __init__(self, shards: object) -> None:
        self._addresses = _checked(shards)
        self._numbers: dict[str, int] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the address of each database once."""
        return tuple(dict.fromkeys(self._addresses.values()))

    @staticmethod
    def show() -> Statement[int]:
        """Return the statement whose answer is the shard of a database; 0: it is not one of several."""
        return Statement("observe/show_shard", {}, lambda rows, _: int(rows[0][0]))

    def address_of(self, queue: str) -> str:
        """Return the address of the database that has a queue. Raises ValueError if there is none."""
        for pattern, address in self._addresses.items():
            if queue == pattern or (pattern.endswith("*") and queue.startswith(pattern[:-1])):
                return address
        message = (
            f"queue {queue!r} matches none of shards ({', '.join(map(repr, self._addresses))}): "
            "add it, or '*' for all other queues"
        )
        raise ValueError(message)

    def address_for(self, chunk: Chunk) -> str:
        """Return the address of the database for these jobs. Raises ValueError if one database cannot have them."""
        options = chunk.options
        if options.queue is None:
            message = (
                f"queue of {chunk.kind!r} is missing: a client with shards chooses the database by it. "
                "Give queue=..., or enqueue with the handler, which has one"
            )
            raise ValueError(message)
        if options.is_unique and len(self.addresses) > 1 and not (options.unique and options.unique.queue):
            message = (
                f"unique: with shards, {chunk.kind!r} is unique in one database and not in all of them. "
                "Give each queue its own keys: unique=Unique(..., queue=True)"
            )
            raise ValueError(message)
        return self.address_of(options.queue)

    def check_after(self, chunk: Chunk, address: str) -> None:
        """Raise ValueError if these jobs wait for a job of another database."""
        self._check_ids(chunk.options.after or (), address, f"queue {chunk.options.queue!r}")

    def flow_address(self, statement: Statement[Any]) -> str:
        """Return the address of the database for a flow. Raises ValueError if its jobs belong to several."""
        nodes = json.loads(statement.parameters["nodes"])
        queues = {node.get("options", {}).get("queue", _USUAL): None for node in nodes}
        addresses = {self.address_of(queue): queue for queue in queues}
        if len(addresses) > 1:
            message = (
                f"flow: its jobs are in queues of several shards ({', '.join(map(repr, addresses.values()))}). "
                "Give them queues of one shard, or let the last job of one flow enqueue the next flow"
            )
            raise ValueError(message)
        return next(iter(addresses), self.addresses[0])

    def check_flow(self, statement: Statement[Any], address: str) -> None:
        """Raise ValueError if a job of the flow waits for a job of another database."""
        for node in json.loads(statement.parameters["nodes"]):
            ids = [one for one in node.get("after", ()) if isinstance(one, int)]
            self._check_ids(ids, address, f"node {node.get('node')!r}")

    def check_extension(self, statement: Statement[Any], address: str) -> None:
        """Raise ValueError if new jobs of a flow do not belong to the flow's database."""
        if (other := self.flow_address(statement)) != address:
            message = (
                f"calls: they belong to shards[{self._pattern(other)!r}], and the flow is in "
                f"shards[{self._pattern(address)!r}]: give them a queue of that shard"
            )
            raise ValueError(message)
        self.check_flow(statement, address)

    def record(self, address: str, number: int) -> None:
        """Record which shard a database is. Raises ValueError if ids of two databases could be equal."""
        if number == 0:
            message = (
                f"the database shards[{self._pattern(address)!r}] has no shard: "
                "run `jobherd migrate --shard 2/4` on it, with its number and their total"
            )
            raise ValueError(message)
        for other, known in self._numbers.items():
            if known == number and other != address:
                message = (
                    f"shards[{self._pattern(address)!r}] and shards[{self._pattern(other)!r}] are both shard {number}, "
                    "whose jobs have the same ids. If they are the same database, give it one address. "
                    "Otherwise replace one of them by a new database with `jobherd migrate --shard 2/4`"
                )
                raise ValueError(message)
        self._numbers[address] = number

    def is_known(self, address: str) -> bool:
        """Return whether the shard of this database is known."""
        return address in self._numbers

    def find(self, number: int) -> str | None:
        """Return the address of a shard, or None if it is not known."""
        return next((address for address, known in self._numbers.items() if known == number), None)

    def unknown(self) -> list[str]:
        """Return the addresses whose shard is not known yet."""
        return [address for address in self.addresses if address not in self._numbers]

    def to_ask(self, number: int) -> Iterator[tuple[str, float | None]]:
        """Yield the databases to ask until this shard is known, and how long to wait for a session of each.

        A database that is away must not delay the answer of another one by the client's whole timeout (None).
        """
        for within in (BRIEFLY, None):
            for address in self.unknown():
                if self.find(number) is None:
                    yield address, within

    def missing(self, job_id: int) -> ValueError:
        """Return the error for an id of a shard that none of the databases is."""
        known = ", ".join(map(str, sorted(self._numbers.values())))
        return ValueError(f"job {job_id} is in shard {shard_of(job_id)}, and shards has only shard {known}: add it")

    def unrouted(self, statement: Statement[Any]) -> ValueError:
        """Return the error for a statement that names no job, so that its database is not known."""
        return ValueError(
            f"shards: {statement.name} does not name a job, so its database is not known. "
            "Call it on a Client of one database, or on a Client of each"
        )

    def check_own(self, number: int, address: str) -> None:
        """Raise ValueError if the caller's connection leads to another database than these jobs need."""
        wanted = self._numbers[address]
        if number != wanted:
            message = (
                f"connection leads to {f'shard {number}' if number else 'a database without a shard number'}, and "
                f"shards[{self._pattern(address)!r}] is shard {wanted}: one transaction cannot be in two databases. "
                "Use a queue of the connection's shard, or enqueue after the commit with a Client without connection"
            )
            raise ValueError(message)

    def _check_ids(self, ids: Iterable[int], address: str, who: str) -> None:
        own = self._numbers[address]
        for id_ in ids:
            if (other := shard_of(id_)) != own:
                message = (
                    f"after names job {id_} of shard {other}, and {who} is in shard {own}: a job can only wait for "
                    "jobs of its database. Use a queue of that shard, or let that job's handler enqueue this one"
                )
                raise ValueError(message)

    def _pattern(self, address: str) -> str:
        """Return how errors name a database: an address may have a password."""
        return next(pattern for pattern, one in self._addresses.items() if one == address)


def _checked(shards: object) -> dict[str, str]:
    if not isinstance(shards, Mapping) or not shards:
        message = (
            'shards is a dict of queues and addresses, such as {"mail-*": "postgresql://a/app", '
            f'"*": "postgresql://b/app"}}, not {"an empty dict" if isinstance(shards, Mapping) else type_name(shards)}'
        )
        raise TypeError(message)
    before: list[str] = []
    for pattern, address in shards.items():
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            message = f"shards: {shown(pattern)} is not a queue, nor a prefix of queues with a * at the end"
            raise ValueError(message)
        if not isinstance(address, str) or not address:
            message = f"shards[{pattern!r}] must be the address of a database, not {type_name(address)}"
            raise TypeError(message)
        for earlier in before:
            if earlier.endswith("*") and pattern.startswith(earlier[:-1]):
                message = f"shards[{pattern!r}] is never used: {earlier!r} is before it and matches the same queues"
                raise ValueError(message)
        before.append(pattern)
    return dict(shards)
