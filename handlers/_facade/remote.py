"""Run and enqueue jobs without access to the database, through a gateway.

    from jobherd.remote import Producer, Worker

Requires the extra `grpc`.
"""

from __future__ import annotations

try:
    from jobherd.handlers._remote.errors import AccessDeniedError, RejectedError, RemoteError, UnreachableError
    from jobherd.handlers._remote.producer import Producer
    from jobherd.handlers._remote.task import Task
    from jobherd.handlers._remote.worker import Worker
except ModuleNotFoundError as problem:
    if (problem.name or "").partition(".")[0] not in {"google", "grpc"}:
        raise
    message = "jobherd.remote requires grpcio and protobuf. Install them with: pip install 'jobherd[grpc]'"
    raise ImportError(message) from problem

__all__ = ["AccessDeniedError", "Producer", "RejectedError", "RemoteError", "Task", "UnreachableError", "Worker"]
