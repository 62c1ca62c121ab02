"""Batch handlers that do what their payloads request, loaded by the workers under test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobherd import Job, JobTimeout, Nack, Poison, after_job, before_job, handler, middleware
from tests.support.gate import at_gate


@dataclass
class Sms:
    to: str
    says: str = "ok"

    def __post_init__(self) -> None:
        if self.says == "exit":
            raise SystemExit(0)


class Lies(Exception):
    """Raises SystemExit in code that reads its class."""

    @property
    def __class__(self) -> type:
        raise SystemExit(0)


@handler("sms:send", batch=5, max_attempts=3, backoff="1h")
def send(jobs: list[Job], messages: list[Sms]) -> dict[int, object]:
    """Return for each job the number of jobs in the call, or the result that its payload requests."""
    answers: dict[int, object] = {}
    for job, message in zip(jobs, messages, strict=True):
        match message.says:
            case "ok":
                answers[job.id] = {"to": message.to, "together": len(jobs)}
            case "nack":
                answers[job.id] = Nack("1h", "busy")
            case "poison":
                answers[job.id] = Poison("gone")
            case "error":
                answers[job.id] = ValueError("its own error")
            case "object":
                answers[job.id] = object()
            case "all":
                raise RuntimeError("all of it")
            case "lies":
                raise Lies
            case "silent":
                pass
    return answers


@handler("sms:gated", batch=5, max_attempts=3, backoff="1h", timeout="10m")
async def gated(jobs: list[Job]) -> list[object]:
    label = at_gate(f"gate {len(jobs)}")
    for job in jobs:
        job.progress(0.5, "half")
    return [Nack("1h", label) if job.cancelled else label for job in jobs]


@handler("sms:slow", batch=5, timeout=0.2, backoff="1h")
def slow(jobs: list[Job]) -> None:
    try:
        at_gate("slow")
    except JobTimeout:
        jobs[0].progress(0.1)
        raise


@handler("sms:linger", batch=3, linger="30s")
def linger(payloads: list[int]) -> list[int]:
    return [len(payloads)] * len(payloads)


@handler("sms:lingers_shortly", batch=3, linger="10ms")
def lingers_shortly(payloads: list[int]) -> list[int]:
    return [len(payloads)] * len(payloads)


@handler("sms:single")
def single() -> None: ...


@before_job("sms:hooked")
def refuse(job: Job) -> None:
    if job.payload == "refused":
        raise Poison("not with me")


@after_job("sms:hooked")
def note(job: Job, outcome: Any) -> None:
    print(f"{job.payload} ended {outcome.label}")


@middleware("sms:hooked")
def never(job: Job, call_next: Any) -> object:
    raise AssertionError("it is for one job at a time")


@handler("sms:hooked", batch=5)
def hooked(payloads: list[str]) -> list[str]:
    return [f"{len(payloads)} of them: {payload}" for payload in payloads]


@handler("bytes:single")
def take_bytes(job: Job, payload_bytes: bytes, name: str) -> str:
    return f"{name} {job.tenant} {payload_bytes.hex()}"


@handler("bytes:together", batch=5)
def take_bytes_together(jobs: list[Job]) -> list[str]:
    return [f"{job.tenant} {'' if job.payload_bytes is None else job.payload_bytes.hex()}" for job in jobs]
