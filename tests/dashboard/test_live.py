"""The hub of live updates: one query for all viewers, none without viewers, and no backlog for a slow viewer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime
from itertools import pairwise

import psycopg
import pytest

from jobherd.workers.dashboard import application
from jobherd.workers.dashboard.database import Away
from jobherd.workers.dashboard.event_stream import Stream
from jobherd.workers.dashboard.live_updates import TOPICS, VIEWERS, Audience, Hub, Topic
from jobherd.workers.dashboard.request import Refused
from tests.dashboard.support import finish
from tests.support.patience import LIMIT

HERE, LOOKING = Audience("", acting=True), Audience("", acting=False)


class Asked:
    """The query of a topic, answered by the test. Records the time of each call."""

    def __init__(self):
        self.at = []
        self.came = asyncio.Queue()
        self.answers = asyncio.Queue()
        self.current = None

    async def __call__(self, _, argument):
        self.at.append(asyncio.get_running_loop().time())
        self.came.put_nowait(argument)
        if not self.answers.empty():
            self.current = self.answers.get_nowait()
        if isinstance(self.current, BaseException):
            raise self.current
        more = {"final": True} if self.current == "last" else {"pace": 3600.0} if self.current == "slow" else {}
        return {"title": f"{self.current}{argument}", "reason": "", "since": None} | more


async def _goes_on():
    return True


class Wire:
    """The client end of a stream. It stops reading while `stalled` is cleared."""

    def __init__(self, hub, viewer):
        self.events = asyncio.Queue()
        self.stalled = asyncio.Event()
        self.stalled.set()
        self.left = asyncio.Event()
        self.task = asyncio.ensure_future(Stream(hub, viewer, _goes_on)({}, self._receive, self._send))

    async def _receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        await self.stalled.wait()
        body = message.get("body", b"").decode()
        if body == ": alive\n\n":
            self.events.put_nowait(("alive", None))
        for block in body.split("\n\n"):
            lines = dict(
                line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":")
            )
            if "data" in lines:
                self.events.put_nowait((lines["event"], json.loads(lines["data"])))

    async def next(self):
        return await asyncio.wait_for(self.events.get(), LIMIT)


@contextlib.asynccontextmanager
async def hub_of(asked, every=0.05, name="state"):
    app = application("")
    hub = Hub(
        app,
        None,
        [Topic(name, "ui_state_for_tests.html", asked, every), Topic("other", "ui_state_for_tests.html", asked, every)],
    )
    try:
        yield hub
    finally:
        hub.close()


@pytest.fixture(autouse=True)
def _template(monkeypatch):
    """Render a fragment as the root, whether the viewer may act, and the answer."""
    monkeypatch.setattr(
        "jobherd.workers.dashboard.live_updates.fragment",
        lambda app, root, template, context, acting: f"{root}|{acting}|{context['title']}",
    )


def shown(event):
    assert event[0] == "fragment", event
    return event[1]["html"].rpartition("|")[2]


def test_hub_runs_one_query_for_all_viewers():
    async def watch():
        asked = Asked()
        asked.current = "a"
        async with hub_of(asked) as hub:
            wires = [Wire(hub, hub.enter(hub.find(["state"]), HERE if each % 2 else LOOKING)) for each in range(20)]
            assert {shown(await wire.next()) for wire in wires} == {"a"}
            asked.answers.put_nowait("b")
            assert {shown(await wire.next()) for wire in wires} == {"b"}
            # One query each `every` (0.05 s), not one per viewer. The margin is for a process that
            # stalls before it records the first of two times.
            assert all(later - earlier >= 0.02 for earlier, later in pairwise(asked.at))

    finish(watch())


def test_hub_does_not_repeat_a_final_query_until_another_viewer_arrives():
    async def watch():
        asked = Asked()
        asked.current = "last"
        async with hub_of(asked) as hub:
            wires = [Wire(hub, hub.enter(hub.find(["state"]), HERE)) for _ in range(3)]
            for wire in wires:
                assert [shown(await wire.next()), await wire.next()] == ["last", ("final", {"topic": "state"})]
            (watch,) = hub._watched.values()
            assert (watch.task, len(asked.at)) == (None, 1)
            late = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            assert [shown(await late.next()), await late.next()] == ["last", ("final", {"topic": "state"})]
            assert len(asked.at) == 2
            for wire in (*wires, late):
                wire.left.set()
                await asyncio.wait_for(wire.task, 20)
            assert hub._watched == {}

    finish(watch())


def test_hub_queries_a_slow_topic_less_often():
    async def watch():
        asked = Asked()
        asked.current = "slow"
        async with hub_of(asked, every=0.001) as hub:
            slow = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            assert shown(await slow.next()) == "slow"
            asked.current = "often"
            often = Wire(hub, hub.enter(hub.find(["other"]), HERE))
            for _ in range(20):
                assert await asyncio.wait_for(asked.came.get(), 20) == ""
            assert slow.events.empty()
            assert shown(await often.next()) == "often"

    finish(watch())


def test_hub_cancels_the_query_when_the_last_viewer_leaves():
    async def watch():
        asked = Asked()
        asked.current = "a"
        async with hub_of(asked) as hub:
            wire = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            await wire.next()
            (watch,) = hub._watched.values()
            wire.left.set()
            await asyncio.wait_for(wire.task, LIMIT)
            assert hub._watched == {}
            await asyncio.wait((watch.task,), timeout=LIMIT)
            assert watch.task.cancelled(), "the only viewer has left"

    finish(watch())


def test_hub_does_not_send_an_unchanged_answer_again():
    async def watch():
        asked = Asked()
        asked.current = "a"
        async with hub_of(asked, every=0.01) as hub:
            wire = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            await wire.next()
            for _ in range(10):
                await asyncio.wait_for(asked.came.get(), LIMIT)
            asked.answers.put_nowait("b")
            assert shown(await wire.next()) == "b", "an unchanged answer must not be sent"

    finish(watch())


def test_later_viewer_gets_the_current_answer_without_a_new_query():
    async def watch():
        asked = Asked()
        asked.current = "a"
        async with hub_of(asked, every=3600) as hub:
            first = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            await first.next()
            second = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            assert (shown(await second.next()), len(asked.at)) == ("a", 1)

    finish(watch())


def test_slow_viewer_gets_only_the_latest_answer_and_delays_no_other_viewer():
    async def watch():
        asked = Asked()
        asked.current = 0
        async with hub_of(asked, every=0.01) as hub:
            slow, quick = (Wire(hub, hub.enter(hub.find(["state"]), HERE)) for _ in range(2))
            await quick.next(), await slow.next()
            slow.stalled.clear()
            for number in range(1, 30):
                asked.answers.put_nowait(number)
                assert shown(await quick.next()) == str(number)
            assert sum(len(viewer.waiting) for viewer in hub._viewers) <= 1
            slow.stalled.set()
            got = [shown(await slow.next())]
            while got[-1] != "29":
                got.append(shown(await slow.next()))
            assert len(got) <= 2, "expected the answer that was being sent, and the latest"

    finish(watch())


def test_hub_disconnects_a_viewer_that_stops_reading(monkeypatch):
    monkeypatch.setattr("jobherd.workers.dashboard.event_stream.SLOW", 0.05)

    async def watch():
        asked = Asked()
        asked.current = "a"
        async with hub_of(asked) as hub:
            wire = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            await wire.next()
            wire.stalled.clear()
            asked.answers.put_nowait("b")
            await asyncio.wait_for(wire.task, LIMIT)
            assert hub._viewers == set()

    finish(watch())


def test_idle_stream_sends_a_keepalive_comment(monkeypatch):
    monkeypatch.setattr("jobherd.workers.dashboard.event_stream.ALIVE", 0.01)

    async def watch():
        asked = Asked()
        asked.current = "a"
        async with hub_of(asked, every=3600) as hub:
            wire = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            await wire.next()
            assert await wire.next() == ("alive", None)

    finish(watch())


def test_stream_reports_outages_and_errors_without_secrets_and_recovers():
    async def watch():
        asked = Asked()
        asked.current = "a"
        since = datetime(2026, 1, 2, tzinfo=UTC)
        async with hub_of(asked) as hub:
            wire = Wire(hub, hub.enter(hub.find(["state"]), HERE))
            await wire.next()
            asked.answers.put_nowait(Away(since))
            assert await wire.next() == ("outage", {"since": since.isoformat()})
            asked.answers.put_nowait("a")
            while (event := await wire.next())[0] == "outage":
                pass
            assert shown(event) == "a", "the unchanged answer must be sent again: it ends the outage banner"
            asked.answers.put_nowait(psycopg.errors.QueryCanceled("of a card 4111"))
            name, said = await wire.next()
            assert (name, "4111" in said["reason"]) == ("trouble", False)
            asked.answers.put_nowait(RuntimeError("of a card 4111"))
            while "QueryCanceled" in (said := (await wire.next())[1])["reason"]:
                pass
            assert "4111" not in said["reason"]

    finish(watch())


def test_closing_the_hub_ends_all_streams_and_rejects_new_viewers():
    async def watch():
        asked = Asked()
        asked.current = "a"
        async with hub_of(asked, every=3600) as hub:
            wires = [Wire(hub, hub.enter(hub.find(["state"]), HERE)) for _ in range(5)]
            for wire in wires:
                await wire.next()
            hub.close()
            await asyncio.wait_for(asyncio.gather(*(wire.task for wire in wires)), LIMIT)
            with pytest.raises(Refused):
                hub.enter(hub.find(["state"]), HERE)

    finish(watch())


def test_close_returns_tasks_that_wait_until_running_queries_are_canceled():
    """Regression: the event loop was closed before, and the garbage collector logged an error about an open session."""

    async def watch():
        begun, go_on, ended = asyncio.Queue(), asyncio.Event(), []

        async def ask(_database, argument):
            begun.put_nowait(argument)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # like the driver, which cancels on the server and waits for its reply
                await go_on.wait()
                ended.append(argument)
                raise

        async with hub_of(ask) as hub:
            gone, there = (Wire(hub, hub.enter(hub.find([f"state:{name}"]), HERE)) for name in ("gone", "there"))
            assert {await begun.get(), await begun.get()} == {"gone", "there"}
            gone.left.set()
            await gone.task
            await asyncio.sleep(0)
            left = hub.close()
            go_on.set()
            await asyncio.wait_for(asyncio.wait(left), LIMIT)
            await there.task
        assert sorted(ended) == ["gone", "there"]

    finish(watch())


def test_hub_limits_the_number_of_viewers_and_topics():
    async def watch():
        asked = Asked()
        asked.current = "a"
        async with hub_of(asked, every=3600) as hub:
            for topics in (
                ["nothing"],
                [],
                [f"state:{number}" for number in range(TOPICS + 1)],
                ["state:" + "x" * 201],
            ):
                with pytest.raises(Refused):
                    hub.find(topics)
            wires = [Wire(hub, hub.enter(hub.find(["state:1", "state:2"]), HERE)) for _ in range(VIEWERS)]
            with pytest.raises(Refused) as refused:
                hub.enter(hub.find(["state"]), HERE)
            assert refused.value.status == 503
            assert len(hub._watched) == 2
            wires[0].left.set()
            await wires[0].task
            hub.enter(hub.find(["state"]), HERE)

    finish(watch())


def test_hub_waits_after_a_slow_query_before_the_next_one():
    async def watch():
        spans = asyncio.Queue()

        async def slow(_, __):
            begun = asyncio.get_running_loop().time()
            await asyncio.sleep(0.1)
            spans.put_nowait((begun, asyncio.get_running_loop().time()))
            return {"title": "a"}

        async with hub_of(slow, every=0.01) as hub:
            Wire(hub, hub.enter(hub.find(["state"]), HERE))
            seen = [await asyncio.wait_for(spans.get(), LIMIT) for _ in range(3)]
            assert all(later[0] - earlier[1] >= 0.09 for earlier, later in pairwise(seen))

    finish(watch())
