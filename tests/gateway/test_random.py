"""Random messages end at most their own stream, and every job still reaches a final state."""

from __future__ import annotations

import base64
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.gateway.conftest import TOKENS
from tests.gateway.remote import done

if TYPE_CHECKING:
    from tests.gateway.conftest import Served
    from tests.gateway.remote import Client, Message, Stream

NUMBERS = (0, 1, 2, 3, 2**31 - 1, 2**32 - 1)
LONG = ("0", "1", "-1", "9223372036854775807", "-9223372036854775808")
DOUBLES = (0, -1, 0.5, 1e300, "NaN", "Infinity", "-Infinity")
TEXTS = ("", "a", "a\0b", "\ud7ff\U0010ffff", "x" * 20_000, "*", "r:*", "{}", '{"a": "\\u0000"}')


def number(dice: random.Random) -> int:
    return dice.choice(NUMBERS)


def data(dice: random.Random) -> str:
    return base64.b64encode(dice.choice(TEXTS).encode() if dice.random() < 0.8 else dice.randbytes(30)).decode()


def some_ref(dice: random.Random, known: list[Message]) -> Message:
    if known and dice.random() < 0.7:
        task = dice.choice(known)
        return {"task_id": task["id"], "claim": task["claim"]}
    return {"task_id": dice.choice(LONG), "claim": dice.choice(LONG)}


def outcome(dice: random.Random) -> Message:
    seconds, text = dice.choice(DOUBLES), dice.choice(TEXTS)
    choices: list[Message] = [
        {},
        {"completed": {"result": data(dice)}},
        {"failed": {"error": text, "code": dice.choice(TEXTS), "traceback": text, "retry_after_seconds": seconds}},
        {"failed": {"crash": {"signal": 2**31 - 1, "exit_code": -(2**31), "post_mortem": data(dice)}}},
        {"nack": {"delay_seconds": seconds, "reason": text}},
        {"snooze": {"delay_seconds": seconds}},
        {"abandon": {}},
        {"cancelled": {}},
    ]
    return dice.choice(choices)


def message(dice: random.Random, known: list[Message], step: int) -> Message:
    refs = [some_ref(dice, known) for _ in range(dice.randrange(4))]
    match dice.randrange(6):
        case 0 | 1:
            kinds = [dice.choice((*TEXTS, "r:one", "r:two")) for _ in range(dice.randrange(3))] or ["r:one"]
            count = dice.choice((0, 1, 2, 500, 2**32 - 1)) if dice.random() < 0.2 else 2
            ready: dict[str, Any] = {"number": step + 1, "kinds": kinds, "queues": ["random"], "count": count}
            return {"ready": {**ready, "lease_seconds": dice.choice((*DOUBLES, 600))}}
        case 2:
            results = [
                {**one, "ran_seconds": dice.choice(DOUBLES), "log": data(dice), "usage": data(dice), **outcome(dice)}
                for one in refs
            ]
            return {"results": {"number": step + 1, "results": results}}
        case 3:
            return {"heartbeat": {"number": number(dice), "tasks": refs, "extend_seconds": dice.choice(DOUBLES)}}
        case 4:
            one = some_ref(dice, known)
            return {"release": {"claim": one["claim"], "behind_task_id": dice.choice((0, one["task_id"]))}}
        case _:
            report = {"fraction": dice.choice(DOUBLES), "note": dice.choice(TEXTS), "data": data(dice)}
            return {"progress": {"task": some_ref(dice, known), **report}}


@pytest.mark.parametrize("seed", range(2))
def test_random_messages_end_at_most_their_own_stream(served: Served, client: Client, seed: int):
    dice = random.Random(seed)
    jobs = [served.enqueue(dice.choice(("r:one", "r:two")), queue="random", max_attempts=100) for _ in range(60)]
    witness = client.stream(served.where)
    witness.hello(token=TOKENS["all"])
    for _ in range(6):
        stream = client.stream(served.where)
        stream.hello(token=TOKENS["all"])
        known: list[Message] = []
        for step in range(40):
            stream.send(**message(dice, known, step))
            client.hear(0.01)
            known += [task for batch in stream.heard("tasks") for task in batch.get("tasks", []) if task not in known]
        leave(stream)
        assert witness.beat(), "no other stream has ended"
    assert not served.fleet.said("an error of Jobherd's own")
    # The jobs of the ended streams return to the queue and can be completed.
    hurry = "SELECT jobherd.retry(id) FROM jobherd.scheduled WHERE queue = 'random'"

    def over() -> bool:
        numbers = witness.ready("r:*", count=100)
        witness.send(ready={"number": numbers, "count": 0})
        tasks = witness.tasks(numbers)
        if tasks:
            witness.end(*map(done, tasks))
        served.stage.run(hurry)
        return set(served.stage.census(jobs)) <= {"completed", "failed", "cancelled", "expired"}

    served.stage.wait(over, lambda: f"the end of {served.stage.census(jobs)}")
    assert served.stage.completed_twice() == []


def leave(stream: Stream) -> None:
    stream.do("end")
    stream.status()
