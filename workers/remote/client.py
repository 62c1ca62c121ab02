"""The default client of handlers in a worker without a database: it enqueues through the uplink.

The uplink calls ProducerService. Everything else that a client can do needs a database and is
refused with a sentence.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.origin import origin
from jobherd.handlers._enqueue.tracing import enqueueing, tracer
from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.new_jobs import ids_of, request_of
from jobherd.workers.remote.frames import FrameReader, frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.send import Connection

NAME = "producers"
"""Name of the socket in the folder of the uplink."""
LONGEST = 60.0
"""Seconds for an answer. The uplink gives up earlier."""
_CHUNK = 1 << 16


class UplinkClient(Client):
    """Enqueues through the uplink. Safe to use from several threads."""

    def __init__(self, folder: Path, *, schema: str) -> None:
        super().__init__("", schema=schema)
        self._path = str(folder / NAME)

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        """Enqueue jobs, all or none, and return their ids in order.

        Raises:
            ValueError: the gateway rejects the jobs.
            ConnectionError: no gateway has answered in time. The jobs may be enqueued.
            DuplicateJob: another job holds the key of a unique job. No job was enqueued.
        """
        # The session of such a worker has no database, so its name is empty.
        parent = origin(b"", self.schema)
        with_parent = [chunk.with_origin(parent) for chunk in chunks]
        own = tracer()
        if own is None or len(with_parent) != 1:
            return self._call(with_parent)
        with enqueueing(own, with_parent[0]) as (traced, record_ids):
            ids = self._call([traced])
            record_ids(ids)
        return ids

    def _call(self, chunks: list[Chunk]) -> list[int]:
        request = request_of(chunks)
        if not request.jobs:
            return []
        try:
            answer = self._exchange(request)
        except OSError as problem:
            message = f"cannot enqueue, the uplink does not answer: {problem}"
            raise ConnectionError(message) from None
        if answer.refused:
            raise (ValueError if answer.number else ConnectionError)(answer.refused)
        return ids_of(answer)

    def _exchange(self, request: m.EnqueueRequest) -> m.EnqueueStreamResponse:
        # A connection for each call: a handler may close any file, and forks keep a copy of it.
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LONGEST)
            connection.connect(self._path)
            connection.sendall(frame(request))
            frames = FrameReader()
            while (body := frames.next()) is None:
                data = connection.recv(_CHUNK)
                if not data:
                    message = "it has closed the connection"
                    raise ConnectionError(message)
                frames.feed(data)
        return m.EnqueueStreamResponse.FromString(body)

    @contextmanager
    def _session(self, within: float | None = None) -> Iterator[Connection]:
        del within
        self._refuse()
        yield  # type: ignore[unreachable]  # makes it a generator

    @staticmethod
    def _refuse() -> NoReturn:
        message = (
            "`jobherd work` has no database: its handlers can enqueue jobs, and nothing else. Use jobherd.remote, "
            "or a Client with the address of a database"
        )
        raise RuntimeError(message)
