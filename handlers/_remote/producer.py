"""`Producer` of `jobherd.remote`: enqueues, shows and cancels jobs through a gateway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Self

from jobherd.handlers._enqueue import bulk
from jobherd.handlers._enqueue.options import check_id
from jobherd.handlers._policy.durations import Duration, at_least_zero, positive
from jobherd.handlers._remote import messages
from jobherd.handlers._remote.channels import Tls
from jobherd.handlers._remote.new_jobs import ids_of, request_of
from jobherd.handlers._remote.reconnect import read_addresses
from jobherd.handlers._remote.schema import PRODUCER
from jobherd.handlers._remote.unary_calls import NotFoundError, UnaryCalls
from jobherd.handlers._values.job_id import JobId, job_id
from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.handlers._values.payload import decode_payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike
    from types import TracebackType

    from jobherd.handlers._enqueue.bulk import Chunk

WAIT_SECONDS: Final = 30.0
"""How long one call waits for a job. The gateway accepts at most 60 s."""


class Producer:
    """Enqueues and manages jobs through a gateway. The process needs no access to the database.

    A call that gets no answer is repeated, at another gateway if there is one. Each enqueue has an
    idempotency key, so that a repeated call enqueues its jobs once. Safe to use from several
    threads.

    Args:
        addr: gateways of one database: "HOST:PORT[,HOST:PORT]", "unix:PATH", or a sequence.
        token: token that the gateway accepts. Default: none, for a client certificate.
        timeout: time after which a call without an answer fails, a duration, default 30 s.
        tls: use TLS with the system's certificate authorities; default False.
        ca: file with the gateway's certificate authority, PEM. Implies `tls`.
        cert: file with the client's certificate, PEM. Implies `tls`.
        key: file with the client's private key, PEM.

    Raises:
        ValueError, TypeError: an argument is invalid.

    Example:
        >>> with Producer("gateway.example:9091", token="...", tls=True) as producer:  # doctest: +SKIP
        ...     producer.enqueue("mail:receipt", {"order_id": 7}, delay="10m")
        42
    """

    def __init__(
        self,
        addr: str | Sequence[str],
        *,
        token: str | None = None,
        timeout: Duration = 30.0,
        tls: bool = False,
        ca: str | PathLike[str] | None = None,
        cert: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
    ) -> None:
        self._calling = UnaryCalls(
            read_addresses(addr),
            token=token or "",
            tls=Tls(tls=tls, ca=ca, cert=cert, key=key),
            timeout=positive(timeout, field="timeout"),
        )

    def enqueue(self, kind: str, payload: object = None, *, idempotency_key: str = "", **options: Any) -> JobId:
        """Enqueue one job and return its id, after its commit.

        Args:
            kind: kind of the job.
            payload: a dict of the handler's parameters, default {}.
            idempotency_key: 1 to 200 printable ASCII characters. If the same token uses the key
                again within 24 hours, nothing is enqueued and the first id is returned. Default: a
                new key for this call.
            options: as in `jobherd.Client.enqueue`.

        Raises:
            PayloadError, ValueError, TypeError: the payload or an option is invalid.
            AccessDeniedError: the gateway rejects the token, or does not allow the kind or queue.
            RejectedError: the gateway rejects the job.
            DuplicateJob: a unique job is there already, and `conflict` is "raise".
            UnreachableError: no gateway has answered in time. The job may be enqueued: repeat the
                call with the same `idempotency_key`.

        Example:
            >>> producer.enqueue("mail:receipt", {"order_id": 7}, priority=-5)  # doctest: +SKIP
            42
        """
        return job_id(self._put([bulk.one_by_name(kind, payload, options)], idempotency_key)[0])

    def enqueue_many(
        self, kind: str, payloads: Iterable[object], *, idempotency_key: str = "", **options: Any
    ) -> list[int]:
        """Enqueue jobs of one kind, all or none, in one transaction. Return their ids in order.

        Args:
            kind: kind of the jobs.
            payloads: at most 10,000, and at most 8 MiB together.
            idempotency_key: as in `enqueue`, for all jobs together.
            options: as in `enqueue`, for all jobs.

        Raises:
            What `enqueue` raises. A PayloadError has the `index` of the payload.

        Example:
            >>> producer.enqueue_many("mail:receipt", [{"order_id": 7}, {"order_id": 8}])  # doctest: +SKIP
            [42, 43]
        """
        return self._put(list(bulk.many_by_name(kind, payloads, options)), idempotency_key)

    def cancel(self, job_id: int, *, reason: str = "") -> str | None:
        """Cancel a job.

        Args:
            job_id: id of the job.
            reason: why, for the audit log. Default: none.

        Returns:
            "cancelled"; "cancelling" if the job is running and its worker is asked to stop it; the
            final state it was already in; or None if the job does not exist.

        Raises:
            AccessDeniedError, UnreachableError: as in `enqueue`.

        Example:
            >>> producer.cancel(42, reason="sent by mistake")  # doctest: +SKIP
            'cancelled'
        """
        request = messages.CancelJobRequest(id=check_id(job_id), reason=reason)
        try:
            return self._calling.call(PRODUCER.methods["CancelJob"], request, messages.CancelJobResponse).state
        except NotFoundError:
            return None

    def get(self, job_id: int) -> dict[str, Any] | None:
        """Return a job, in the form of `jobherd job ID --json`, or None if the job does not exist.

        Args:
            job_id: id of the job.

        Raises:
            AccessDeniedError, UnreachableError: as in `enqueue`.

        Example:
            >>> producer.get(42)["state"]  # doctest: +SKIP
            'running'
        """
        try:
            return self._job(check_id(job_id), 0.0)
        except NotFoundError:
            return None

    def wait(self, job_id: int, timeout: Duration | None = None) -> dict[str, Any]:
        """Wait until a job is completed, failed, canceled or expired, and return it.

        Args:
            job_id: id of the job.
            timeout: longest wait, a duration. Default None: no limit.

        Raises:
            TimeoutError: the timeout has passed.
            LookupError: the job does not exist.
            AccessDeniedError, UnreachableError: as in `enqueue`.

        Example:
            >>> producer.wait(42, timeout="1m")["result"]  # doctest: +SKIP
            'sent the receipt of order 7'
        """
        check_id(job_id)
        rest = float("inf") if timeout is None else at_least_zero(timeout, field="timeout")
        until = time.monotonic() + rest
        while True:
            try:
                job = self._job(job_id, min(rest, WAIT_SECONDS))
            except NotFoundError:
                message = f"job {job_id} does not exist"
                raise LookupError(message) from None
            if job["state"] in FINAL_STATES:
                return job
            rest = until - time.monotonic()
            if rest <= 0:
                message = f"job {job_id} is not finished: it is {job['state']}"
                raise TimeoutError(message)

    def close(self) -> None:
        """Close the connection. The producer can be used again; it then opens another one."""
        self._calling.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _job(self, job_id: int, wait: float) -> dict[str, Any]:
        request = messages.GetJobRequest(id=job_id, wait_seconds=wait)
        answer = self._calling.call(PRODUCER.methods["GetJob"], request, messages.GetJobResponse, wait=wait)
        job = decode_payload(answer.job)
        assert isinstance(job, dict)
        return job

    def _put(self, chunks: list[Chunk], key: str) -> list[int]:
        request = request_of(chunks, key)
        if not request.jobs:
            return []
        return ids_of(self._calling.call(PRODUCER.methods["Enqueue"], request, messages.EnqueueResponse))
