"""Types of producers, checked with mypy.

Run by test_typing. Each ignored error must occur: unused ignores are errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_type

from jobherd import Handler, Job, JobId, Json, handler
from jobherd.testing import Ran, run

if TYPE_CHECKING:
    import psycopg

    from jobherd import AsyncClient, Client


@handler("mail:receipt")
def receipt(order_id: int) -> None: ...


@handler(
    "image:thumbnail",
    queue="media",
    timeout="2m",
    poison_on=(FileNotFoundError,),
    backoff_on={TimeoutError: ["1s", "2s"]},
)
def thumbnail(job: Job, path: str, width: int = 320) -> dict[str, int]:
    assert_type(job.id, int)
    return {path: width}


@handler
def bare(job: Job, name: str) -> str:
    return name


@handler()
def called(name: str) -> str:
    return name


@handler("web:fetch")
async def fetch(job: Job, url: str) -> bytes:
    return url.encode()


@handler("any:document")
def document(payload: Json) -> None: ...


@handler("no:arguments")
def nothing() -> None: ...


# A producer's arguments are the handler's, without the job.
assert_type(receipt.enqueue(order_id=7), JobId)
assert_type(receipt.enqueue(7), JobId)
assert_type(thumbnail.enqueue(path="x"), JobId)
assert_type(thumbnail.enqueue("x", width=5), JobId)
assert_type(bare.enqueue(name="x"), JobId)
assert_type(called.enqueue(name="x"), JobId)
assert_type(fetch.enqueue(url="x"), JobId)
assert_type(document.enqueue(payload={"a": [1]}), JobId)
assert_type(nothing.enqueue(), JobId)
receipt.enqueue()  # type: ignore[call-arg]
receipt.enqueue(order_id="7")  # type: ignore[arg-type]
receipt.enqueue(oder_id=7)  # type: ignore[call-arg]
receipt.enqueue(7, 8)  # type: ignore[call-arg]
thumbnail.enqueue(path="x", width="5")  # type: ignore[arg-type]
thumbnail.enqueue(Job(id=1, kind="x"), "x")  # type: ignore[arg-type]
bare.enqueue(name=5)  # type: ignore[arg-type]
called.enqueue(name=5)  # type: ignore[arg-type]
fetch.enqueue(url=5)  # type: ignore[arg-type]
nothing.enqueue(1)  # type: ignore[call-arg]

# Options keep the signature.
assert_type(receipt.options(delay="10m", priority=-5).enqueue(order_id=7), JobId)
receipt.options(delay="10m").enqueue(order_id="7")  # type: ignore[arg-type]
receipt.options(dely="10m")  # type: ignore[call-arg]
receipt.options(delay="10m").options(queue="x").enqueue()  # type: ignore[call-arg]

# Bulk enqueue and payloads.
assert_type(receipt.enqueue_many([{"order_id": 7}, (8,)]), list[int])
assert_type(receipt.enqueue_many(receipt.payload(order_id=n) for n in range(3)), list[int])
receipt.payload(order_id="7")  # type: ignore[arg-type]


async def producers(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    assert_type(await receipt.aenqueue(order_id=7), JobId)
    assert_type(await receipt.options(connection=connection).aenqueue_many([(7,)]), list[int])
    await receipt.aenqueue(order_id="7")  # type: ignore[arg-type]
    assert_type(await fetch(Job(id=1, kind="x"), "x"), bytes)


# Flows are canceled and run again by their id.
async def flows(client: Client, own: AsyncClient) -> None:
    assert_type(client.cancel_flow(7, actor="ada", reason="test"), str | None)
    assert_type(client.seal_flow(7), str | None)
    assert_type(client.retry_flow(7, "page"), int | None)
    assert_type(await own.cancel_flow(7), str | None)
    assert_type(await own.retry_flow(7, from_node="page", reason="test"), int | None)
    client.cancel_flow("7")  # type: ignore[arg-type]
    client.retry_flow(7, ["page"])  # type: ignore[arg-type]
    await own.retry_flow(7, node="page")  # type: ignore[call-arg]


# A handler is called like its function, the job included.
assert_type(receipt(7), None)
assert_type(thumbnail(Job(id=1, kind="x"), "x", width=5), dict[str, int])
assert_type(called("x"), str)
receipt("7")  # type: ignore[arg-type]
thumbnail("x")  # type: ignore[call-arg, arg-type]

# The inline runner takes the producer's arguments.
assert_type(run(receipt, order_id=7), Ran)
assert_type(run(thumbnail, "x", width=5), Ran)
run(receipt, order_id="7")  # type: ignore[arg-type]

# Options of the decorator.
handler("x", timeout=[])  # type: ignore[call-overload]
handler("x", time_out=5)  # type: ignore[call-overload]
handler(5)  # type: ignore[call-overload]

handler("x", batch="5")  # type: ignore[call-overload]
handler("x", linger="1s")  # type: ignore[call-overload]


# A batch handler takes lists, and a producer enqueues one payload per job.
@dataclass
class Sms:
    to: str


@handler("sms:send", batch=50, linger="200ms")
def send(jobs: list[Job], messages: list[Sms]) -> dict[int, object]:
    assert_type(jobs[0].payload_bytes, bytes | None)
    return {job.id: message.to for job, message in zip(jobs, messages, strict=True)}


@handler("sms:count", batch=8)
def count(numbers: list[int]) -> list[int]:
    return numbers


@handler("sms:jobs", batch=8)
def only_jobs(jobs: list[Job]) -> None: ...


assert_type(send.enqueue(Sms("x")), JobId)
assert_type(count.enqueue(7), JobId)
assert_type(only_jobs.enqueue({"any": "document"}), JobId)
assert_type(count([1]), list[int])
assert_type(send([Job(id=1, kind="x")], [Sms("x")]), dict[int, object])
send.enqueue("x")  # type: ignore[arg-type]
count.enqueue([7])  # type: ignore[arg-type]


# Bytes are an argument like any other.
@handler("image:store")
def store(payload_bytes: bytes, name: str = "") -> None: ...


assert_type(store.enqueue(payload_bytes=b"x", name="y"), JobId)
store.enqueue(payload_bytes="x")  # type: ignore[arg-type]

kept: Handler[..., ..., object] = receipt
