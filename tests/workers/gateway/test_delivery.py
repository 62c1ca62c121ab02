"""Tests that a TaskBatch never exceeds the message size that its client can receive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.apart import apart

if TYPE_CHECKING:
    from collections.abc import Sequence


def sent(sizes: Sequence[int], *, most: int, timeout: float = 0.0) -> tuple[Any, list[int], list[int], int]:
    """Send tasks with payloads of these sizes: the message, the released and the snoozed jobs, and the unsent bytes."""
    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.access import Principal
    from jobherd.workers.gateway.actions import SendTasks
    from jobherd.workers.gateway.delivery import Delivery
    from jobherd.workers.gateway.peer import Peer, Worker

    peer, delivery, messages = Peer(1), Delivery(), []
    peer.worker = Worker(Principal("p"), "w", most_bytes=most)
    peer.send = messages.append
    claimed = m.WorkResponse()
    for number, size in enumerate(sizes, 1):
        claimed.tasks.tasks.add(id=number, claim=7, payload=b"x" * size, timeout_seconds=timeout)
    with delivery.of({7: claimed}):
        over, too_large = delivery.send(peer, SendTasks(1, 3, 7), lease=60.0)
    [message] = messages
    assert (message.WhichOneof("event"), message.tasks.ready) == ("tasks", 3)
    return message, [ref.task for ref in over], [ref.task for ref in too_large], delivery.unsent


@apart
async def test_tasks_that_fit_are_sent_with_their_lease(_folder):
    message, over, too_large, unsent = sent([10, 20, 30], most=64 << 10)
    assert [task.id for task in message.tasks.tasks] == [1, 2, 3]
    assert {task.lease_seconds for task in message.tasks.tasks} == {60.0}
    assert (over, too_large, unsent) == ([], [], message.ByteSize())
    message, *_ = sent([10], most=64 << 10, timeout=5.0)
    assert message.tasks.tasks[0].lease_seconds == 5.0


@apart
async def test_batch_of_many_small_tasks_stays_within_the_limit_of_the_client(_folder):
    """The size includes the leases. Otherwise such a message ends the stream, again after each reconnect."""
    for size in range(90, 140, 7):
        message, over, too_large, _ = sent([size] * 500, most=64 << 10)
        assert message.ByteSize() <= 64 << 10, size
        assert (len(message.tasks.tasks) + len(over), too_large) == (500, [])
    assert over, "not all of the largest tasks fit"


@apart
async def test_task_too_large_for_any_message_does_not_block_other_tasks(_folder):
    message, over, too_large, unsent = sent([10, 70_000, 20], most=64 << 10)
    assert [task.id for task in message.tasks.tasks] == [1, 3]
    assert (over, too_large, unsent) == ([], [2], message.ByteSize())
    message, over, _, _ = sent([2 << 20, 2 << 20, 10], most=8 << 20)
    assert [task.id for task in message.tasks.tasks] == [1]
    assert over == [2, 3], "a message with several tasks has at most 3 MiB"
    message, over, _, _ = sent([4 << 20], most=8 << 20)
    assert ([task.id for task in message.tasks.tasks], over) == ([1], [])
