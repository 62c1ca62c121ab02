"""Tests the messages that wait for a stream, and when the gateway stops reading from its client."""

from __future__ import annotations

import asyncio

import pytest

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.client_state import MOST_UNCONFIRMED
from jobherd.workers.gateway import tasks
from jobherd.workers.gateway.actions import Status
from jobherd.workers.gateway.peer import MOST_UNSETTLED, MOST_WAITING, Peer
from tests.support.patience import LIMIT


def taken(peer: Peer) -> m.WorkResponse | None:
    return asyncio.run(peer.next())


def test_acknowledgement_is_sent_with_the_next_tasks_or_separately_if_there_are_none():
    peer = Peer(1)
    peer.acknowledge(3)
    peer.send(m.WorkResponse(tasks=m.TaskBatch(ready=1)))
    message = taken(peer)
    assert message is not None
    assert (message.tasks.ready, message.tasks.ack.up_to) == (1, 3)
    peer.acknowledge(4)
    peer.acknowledge(5)
    assert taken(peer) == m.WorkResponse(result_ack=m.ResultAck(up_to=5))


def test_refusal_is_sent_with_the_acknowledgement_of_its_batch():
    peer = Peer(1)
    peer.refuse(1, m.Refusal(message="one"))
    peer.refuse(3, m.Refusal(message="three"))
    peer.acknowledge(2)
    assert taken(peer) == m.WorkResponse(result_ack=m.ResultAck(up_to=2, refusals=[m.Refusal(message="one")]))
    peer.acknowledge(3)
    assert taken(peer) == m.WorkResponse(result_ack=m.ResultAck(up_to=3, refusals=[m.Refusal(message="three")]))


@pytest.mark.promise("D27", "D28")
def test_peer_is_full_with_too_many_messages_or_result_bytes_until_some_are_handled():
    assert MOST_WAITING == tasks.MOST_UNSETTLED == MOST_UNCONFIRMED == 256, (
        "the gateway and the client use the same limit"
    )
    peer = Peer(1)
    for _ in range(MOST_WAITING):
        assert not peer.is_full
        peer.send(m.WorkResponse(refusal=m.Refusal()))
    assert peer.is_full
    peer.eased.clear()
    taken(peer)
    assert not peer.is_full
    assert peer.eased.is_set()
    peer.note_results(1, MOST_UNSETTLED)
    assert not peer.is_full
    peer.note_results(2, 1)
    assert peer.is_full
    peer.eased.clear()
    peer.acknowledge(1)
    assert not peer.is_full
    assert peer.eased.is_set()


def test_end_of_a_stream_discards_its_messages_and_wakes_all_waiters():
    peer = Peer(1)
    peer.send(m.WorkResponse(drain=m.Drain()))
    peer.end(Status.ABORTED, "because")
    assert taken(peer) is None
    assert peer.opened.is_set()
    assert peer.eased.is_set()


def test_end_of_a_stream_stops_a_write_that_the_client_never_reads():
    async def scene() -> None:
        peer = Peer(1)
        endless: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writing = asyncio.create_task(peer.write(endless))
        await asyncio.sleep(0)  # until it waits
        peer.end(Status.RESOURCE_EXHAUSTED, "it does not read")
        ended, _ = await asyncio.wait({writing}, timeout=LIMIT)
        assert ended, "the write still waits"
        assert endless.cancelled()
        await asyncio.sleep(0)  # the task of the write continues, uncancelled

    asyncio.run(scene())
