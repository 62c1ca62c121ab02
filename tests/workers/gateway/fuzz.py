"""Fuzzes the code that reads messages: the gateway, its clients and its producers.

`python -m tests.workers.gateway.fuzz --minutes 10` (`make fuzz`). It runs in a separate process, because
some targets load gRPC. There is no database and no connection. Each message must be accepted or
rejected with the error that its reader documents. The bookkeeping must stay within its limits. The
database must be able to store what would be recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.client_state import ClientState
from jobherd.handlers._remote.events import Ref
from jobherd.workers.gateway import actions as a
from jobherd.workers.gateway import sessions
from jobherd.workers.gateway.access import Principal
from jobherd.workers.gateway.coordinator import Coordinator
from jobherd.workers.gateway.incoming import Incoming
from jobherd.workers.gateway.new_jobs import NewJobsError, chunks_of
from jobherd.workers.gateway.peer import Worker
from jobherd.workers.gateway.requests import Outcomes
from jobherd.workers.gateway.state import Limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from jobherd.workers.gateway.peer import Peer

WHOLE = (0, 1, 2, 3, 11, 12, 41, 42, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
REAL = (2.0, 3.0, 60.0, 0.25, 0.0, -0.0, 1.0, 0.5, -1.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "a", "a:b", "*", "a:*", "a\0b", "é\U0010ffff", "x" * 5000, "2030-01-31T08:00Z", "https://example.org/x")
BYTES = (b"", b"{}", b"null", b"1e999", b'{"a":"\\u0000"}', b'"\\ud800"', b"[" * 2000, b"\xff\0", b'{"n":1}' * 2)
KNOWN = {"task_id": (11, 12, 21), "claim": (41, 41, 42), "kind": ("a:b",), "payload": (b"{}",), "queue": ("", "q")}
"""Valid values, mostly of the streams' jobs. The gateway would ignore most messages without them."""
LIMITS = Limits(streams=3, slots=8, poll=30.0)


def filled(message: Any, dice: Random, depth: int = 0) -> Any:
    """Fill some fields of a message with edge values of their types."""
    chosen = [dice.choice(oneof.fields) for oneof in message.DESCRIPTOR.oneofs if dice.random() < 0.9]
    for field in message.DESCRIPTOR.fields:
        if field not in chosen if field.containing_oneof else dice.random() < 0.5:
            continue
        if field.is_repeated:
            values = [value_of(field, dice, depth) for _ in range(dice.choice((0, 1, 2, 3)))] if depth < 4 else []
            getattr(message, field.name).extend(values)
        elif field.message_type:
            if depth < 4:
                filled(getattr(message, field.name), dice, depth + 1)
                getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, value_of(field, dice, depth))
    return message


def value_of(field: Any, dice: Random, depth: int) -> Any:
    if field.name in KNOWN and dice.random() < 0.8:
        return dice.choice(KNOWN[field.name])
    match field.type:
        case Field.TYPE_MESSAGE:
            return filled(CLASSES[field.message_type.name](), dice, depth + 1)
        case Field.TYPE_DOUBLE:
            return dice.choice(REAL)
        case Field.TYPE_STRING:
            return dice.choice(TEXTS)
        case Field.TYPE_BYTES:
            return dice.choice(BYTES)
        case Field.TYPE_BOOL:
            return dice.random() < 0.5
        case Field.TYPE_ENUM:
            return dice.choice((0, 1, 2, 3, 4, 77))
        case Field.TYPE_UINT32:
            return dice.choice([each for each in WHOLE if each < 2**32])
        case Field.TYPE_INT32 | Field.TYPE_SINT32:
            return dice.choice([each for each in WHOLE if each < 2**31]) * dice.choice((1, -1))
        case Field.TYPE_UINT64:
            return dice.choice(WHOLE)
        case _:
            return dice.choice([each for each in WHOLE if each < 2**63]) * dice.choice((1, -1))


CLASSES = {each.DESCRIPTOR.name: each for each in vars(m).values() if hasattr(each, "DESCRIPTOR")}


def encoded(kind: Any, dice: Random) -> bytes:
    """Return the bytes of a message, valid or damaged, or random bytes."""
    data = filled(kind(), dice).SerializeToString()
    match dice.randrange(6):
        case 0:
            return dice.randbytes(dice.randrange(60))
        case 1 if data:
            place = dice.randrange(len(data))
            return data[:place] + dice.randbytes(1) + data[place + dice.randrange(3) :]
        case 2:
            return data[: dice.randrange(len(data) + 1)]
        case _:
            return data


def decoded(kind: Any, data: bytes) -> Any:
    """Return the message, or None if the stream or call would end with INVALID_ARGUMENT."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def coordinator_with(peer_count: int) -> tuple[Coordinator, list[Peer]]:
    """Return a coordinator whose database never answers, and its streams, with jobs 11 and 12, 21 and 22, and so on."""
    spec: Any = SimpleNamespace(
        supervisor=1,
        control=SimpleNamespace(gates=0, lease_deadline=float("inf"), epoch=0, notified=True),
        board=SimpleNamespace(
            remote=SimpleNamespace(count=lambda *_: None, observe=lambda *_: None),
            say_streams=lambda *_: None,
            tally=SimpleNamespace(declare=lambda *_: {}, count=lambda *_: None, count_error=lambda *_: None),
        ),
        report=-1,
        settings=SimpleNamespace(lease=15.0, host="h"),
    )
    database: Any = SimpleNamespace(session=None)
    coordinator = Coordinator(spec, database, LIMITS)
    coordinator.counts = SimpleNamespace(count=lambda *_: None)  # type: ignore[assignment]  # of shared memory
    peers = []
    for number in range(1, peer_count + 1):
        peer = coordinator.connect()
        coordinator.greet(peer, Worker(Principal("p"), "w"), sessions.Hello("p", 6 + number))
        jobs = tuple(a.Job(10 * number + each, "a:b", 1, 5, 0.0) for each in (1, 2))
        opened = a.Opened(6 + number, 106 + number, 2, {40 + number: jobs})
        now = time.monotonic()
        coordinator.carry_out(sessions.on_opened(coordinator.state, peer.id, opened, now, now))
        assert peer.opened.is_set()
        peers.append(peer)
    assert not any(peer.ending for peer in peers)
    return coordinator, peers


def recorded(coordinator: Coordinator) -> None:
    """Take the requests that wait for the database, and check that it can store them."""
    for request in coordinator.queue.take(coordinator.state):
        if not isinstance(request, Outcomes):
            continue
        for batch in request.batches:
            for one in batch.finished.values():
                if one is None:
                    continue
                outcome = one.outcome
                texts = (outcome.error, outcome.code, outcome.traceback, one.log, one.usage, one.post_mortem)
                assert not any("\0" in text or "\\u0000" in text for text in texts if text), one
                assert outcome.delay is None or 0 <= outcome.delay < 1e12, one
                assert one.ran is None or 0 <= one.ran < 1e12, one


def try_gateway(dice: Random) -> None:
    """Check that messages of one stream end at most that stream and leave the tasks of the other unchanged."""
    coordinator, (peer, other) = coordinator_with(2)
    incoming = Incoming(coordinator)
    theirs = coordinator.session_of(other)
    assert theirs is not None
    before = sorted(ref for ref, _ in theirs.refs())
    for step in range(1, 13):
        if peer.ending is not None:
            break
        request = decoded(m.WorkRequest, encoded(m.WorkRequest, dice))
        if request is not None:
            for event in {"results", "ready"} & {request.WhichOneof("event")}:
                if dice.random() < 0.9:  # a number that is not higher than the last ends the stream
                    getattr(request, event).number = step
            incoming.receive(peer, request)
        stream = coordinator.state.streams.get(peer.id)
        assert stream is None or stream.asked <= LIMITS.slots
        recorded(coordinator)
    assert other.ending is None
    assert sorted(ref for ref, _ in theirs.refs()) == before


def try_hello(dice: Random) -> None:
    from jobherd.workers.gateway.worker_service import HelloError, worker_of  # it loads gRPC

    hello = decoded(m.Hello, encoded(m.Hello, dice))
    if hello is not None:
        try:
            worker = worker_of(hello, Principal("p"))
        except HelloError:
            return
        assert worker.name.isprintable()


def try_producer(dice: Random) -> None:
    request = decoded(m.EnqueueRequest, encoded(m.EnqueueRequest, dice))
    if request is not None:
        try:
            chunks = chunks_of(request.jobs, Principal("p"))
        except NewJobsError:
            return
        assert sum(len(chunk.texts) for chunk in chunks) == len(request.jobs)


def try_client(dice: Random) -> None:
    """Check that no response of a gateway makes the client raise, or answer a Ready more than once."""
    state, now = ClientState(m.Hello()), 0.0
    state.hello()
    state.on_response(m.WorkResponse(hello_ack=m.HelloAck(session="7", session_seconds=30.0)), now)
    for _ in range(3):
        state.ask(kinds=(), queues=(), count=2, lease=0.0)
    answered = []
    for _ in range(12):
        now += 1.0
        while state.next_request(now) is not None:
            pass
        response = decoded(m.WorkResponse, encoded(m.WorkResponse, dice))
        if response is None:
            continue
        answered += [each.number for each in state.on_response(response, now) if hasattr(each, "number")]
        if response.HasField("tasks"):
            for task in response.tasks.tasks:
                state.extend(Ref(task.id, task.claim), 5.0)
    state.on_break()
    assert len(answered) == len(set(answered))


TARGETS = (try_gateway, try_hello, try_producer, try_client)


def run(examples: int, number: int) -> None:
    """Run each target with this number of examples."""
    with asyncio.Runner() as runner:
        for target in TARGETS:
            attempt(target, examples, number, runner)


def attempt(target: Callable[[Random], None], examples: int, number: int, runner: asyncio.Runner) -> None:
    async def inside(dice: Random) -> None:
        target(dice)  # the coordinator needs a loop that runs

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(dice=st.randoms(use_true_random=True))
    def one(dice: Random) -> None:
        runner.run(inside(dice))

    one()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="0: one round")
    parser.add_argument("--examples", type=int, default=300, help="of each target, in a round")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given_ = parser.parse_args()
    until, rounds = time.monotonic() + 60 * given_.minutes, 0
    print(f"seed {given_.seed}", flush=True)
    while not rounds or time.monotonic() < until:
        run(given_.examples, given_.seed + rounds)
        rounds += 1
    print(f"{rounds} rounds of {given_.examples} examples of {len(TARGETS)} readers: no error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
