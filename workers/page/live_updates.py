"""Sends live updates: one hub queries each topic once for all viewers and sends them changes.

A topic without viewers is not queried. With any number of viewers it is queried at most every
`every` seconds. Its fragment is rendered once for all viewers with the same path and permissions. A
topic that cannot change any more (`FINAL`) is queried once for each new viewer and not again; a
topic that changes seldom may say so (`PACE`). A slow viewer misses versions but never gets outdated
ones: only the latest of each topic waits for it. A viewer that accepts nothing for `SLOW` seconds
is disconnected. A viewer is one endless HTTP response (server-sent events); the browser reconnects
automatically.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import psycopg
from starlette.routing import Route

from jobherd.workers.database.errors import error_name
from jobherd.workers.page.cookies import is_session_valid
from jobherd.workers.page.database import Away
from jobherd.workers.page.render import fragment
from jobherd.workers.page.request import Refused, may_act, root_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from jobherd.workers.page.database import Database

    Ask = Callable[[Database, str], Awaitable[Mapping[str, object]]]

log = logging.getLogger("jobherd.page")

VIEWERS: Final = 200
"""Maximum number of viewers; further ones are told to try again."""
TOPICS: Final = 16
"""Maximum number of topics of a viewer."""
SLOW: Final = 20.0
"""Seconds without progress after which a viewer is disconnected."""
ALIVE: Final = 15.0
"""Seconds of silence after which an empty event is sent.

It detects dead connections, and keeps those behind a proxy open.
"""
LASTS: Final = 600.0
"""Seconds after which a stream ends: the browser reconnects, and is authenticated again."""
FINAL: Final = "final"
"""Key of an answer; if true, nothing more will come and the browser need not watch."""
PACE: Final = "pace"
"""Key of an answer: seconds until the next query, instead of the topic's."""
AGAIN: Final = 2000
"""Milliseconds after which a browser reconnects."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A live part of a page.

    name: of the topic, in a page followed by a colon and the argument (`live("job:17")`).
    template: of the fragment, below templates/.
    ask: takes the database and the argument ("" without one) and returns the fragment's context; it
        must not query the hot table.
    every: seconds between two queries, at least 1.

    >>> topics = (Topic("queues", "queues/_live.html", ask),)  # doctest: +SKIP
    """

    name: str
    template: str
    ask: Ask
    every: float = 1.0


@dataclass(frozen=True, slots=True)
class _Way:
    """The path and permissions of a viewer: viewers with the same ones get the same fragments."""

    root: str
    acting: bool


@dataclass(slots=True, eq=False)
class _Viewer:
    way: _Way
    waiting: dict[str, str] = field(default_factory=dict)
    """By topic, the latest event that was not sent yet."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def in_flight(self, key: str, event: str) -> None:
        self.waiting[key] = event
        self.news.set()


@dataclass(slots=True, eq=False)
class _Watch:
    """A topic with viewers."""

    topic: Topic
    argument: str
    viewers: set[_Viewer] = field(default_factory=set)
    sent: dict[_Way, str] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    @property
    def key(self) -> str:
        return f"{self.topic.name}:{self.argument}" if self.argument else self.topic.name


class Hub:
    """Manage all topics and viewers. Made by `application`, one a process.

    app: the application that renders the pages.
    topics: all topics.
    clock: seconds, default monotonic.
    """

    def __init__(
        self, app: Starlette, database: Database, topics: Iterable[Topic], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._database = database
        self._topics = {topic.name: topic for topic in topics}
        self._clock = clock
        self._watched: dict[str, _Watch] = {}
        self._viewers: set[_Viewer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """Querying tasks, including canceled ones that have not ended."""
        self._closed = False
        self.asked = 0
        """Number of queries."""

    def close(self) -> set[asyncio.Task[None]]:
        """End all streams and queries. Return the tasks to wait for.

        A canceled task first cancels its query on the server.
        """
        self._closed = True
        for viewer in self._viewers:
            viewer.news.set()
        for task in self._tasks:
            _call_back(task)
        return set(self._tasks)

    def find(self, keys: Iterable[str]) -> list[tuple[Topic, str]]:
        """Return the topics of these keys. Raises Refused."""
        found = []
        for key in dict.fromkeys(keys):
            name, _, argument = key.partition(":")
            if name not in self._topics or len(argument) > 200:
                raise Refused(HTTPStatus.NOT_FOUND, "There is no such topic.")
            found.append((self._topics[name], argument))
        if not 1 <= len(found) <= TOPICS:
            raise Refused(HTTPStatus.BAD_REQUEST, f"Ask for 1 to {TOPICS} topics.")
        return found

    def enter(self, topics: Iterable[tuple[Topic, str]], way: _Way) -> _Viewer:
        """Add a viewer. Raises Refused."""
        if self._closed or len(self._viewers) >= VIEWERS:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Too many watch, or the server is leaving; try again.")
        viewer = _Viewer(way)
        self._viewers.add(viewer)
        for topic, argument in topics:
            key = f"{topic.name}:{argument}" if argument else topic.name
            watch = self._watched.setdefault(key, _Watch(topic, argument))
            watch.viewers.add(viewer)
            if way in watch.sent:
                viewer.in_flight(key, watch.sent[way])
            if watch.task is None:
                watch.task = asyncio.get_running_loop().create_task(self._look_again(watch))
                self._tasks.add(watch.task)
                watch.task.add_done_callback(self._tasks.discard)
        return viewer

    def leave(self, viewer: _Viewer) -> None:
        """Remove a viewer; topics without viewers are no longer queried."""
        self._viewers.discard(viewer)
        for key, watch in list(self._watched.items()):
            watch.viewers.discard(viewer)
            if not watch.viewers:
                del self._watched[key]
                if watch.task is not None:
                    _call_back(watch.task)

    @property
    def is_closed(self) -> bool:
        """Whether the streams must end."""
        return self._closed

    async def _look_again(self, watch: _Watch) -> None:
        while True:
            started, every = self._clock(), watch.topic.every
            try:
                self.asked += 1
                context = await watch.topic.ask(self._database, watch.argument)
                self._spread(watch, context)
                if context.get(FINAL):
                    self._end(watch)
                    return
                pace = context.get(PACE)
                every = pace if isinstance(pace, float) else watch.topic.every
            except Away as away:
                self._tell_all(watch, "outage", {"since": away.since.isoformat()})
            except psycopg.Error as problem:
                # A statement took too long, or the schema is of another version: show it and
                # continue.
                log.warning("live: %s could not be asked (%s)", watch.topic.name, error_name(problem))
                self._tell_all(watch, "trouble", {"topic": watch.key, "reason": error_name(problem)})
            except Exception:
                log.exception("live: %s failed", watch.topic.name)
                self._tell_all(
                    watch, "trouble", {"topic": watch.key, "reason": "an error of the page's own; the log says which"}
                )
            # Cost: wait until `every` seconds after the start, and at least as long as the query
            # took. A slow query must not run all the time.
            took = self._clock() - started
            await asyncio.sleep(max(every - took, took))

    def _spread(self, watch: _Watch, context: Mapping[str, object]) -> None:
        """Render the fragment once for each path and permission.

        Queue it for the viewers that do not have this version.
        """
        ways = {viewer.way for viewer in watch.viewers}
        for way in ways:
            html = fragment(self._app, way.root, watch.topic.template, context, acting=way.acting)
            event = _event("fragment", {"topic": watch.key, "html": html})
            if watch.sent.get(way) != event:
                watch.sent[way] = event
                for viewer in watch.viewers:
                    if viewer.way == way:
                        viewer.in_flight(watch.key, event)
        for gone in watch.sent.keys() - ways:
            del watch.sent[gone]

    def _end(self, watch: _Watch) -> None:
        """Notify viewers that the topic is final."""
        watch.task = None  # a new viewer causes a new query
        event = _event("final", {"topic": watch.key})
        for viewer in watch.viewers:
            viewer.in_flight(f"{watch.key} final", event)

    def _tell_all(self, watch: _Watch, name: str, document: Mapping[str, object]) -> None:
        event = _event(name, document)
        watch.sent.clear()  # the next event counts as new: it ends the trouble on the page
        for viewer in watch.viewers:
            viewer.in_flight(watch.key, event)


class Stream:
    """The response to one viewer: an endless stream of events.

    It ends if the viewer disconnects, is too slow or is no longer allowed, or if the hub closes.
    may_go_on: called before each send.
    """

    def __init__(self, hub: Hub, viewer: _Viewer, may_go_on: Callable[[], Awaitable[bool]]) -> None:
        self._hub = hub
        self._viewer = viewer
        self._may_go_on = may_go_on

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end."""
        listening = asyncio.ensure_future(_gone(receive))
        sending = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait((listening, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.leave(self._viewer)
            for task in (listening, sending):
                task.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        viewer = self._viewer
        with suppress(TimeoutError, OSError):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _say(send, f"retry: {AGAIN}\n\n")
            until = asyncio.get_running_loop().time() + LASTS
            while not self._hub.is_closed and asyncio.get_running_loop().time() < until:
                try:
                    async with asyncio.timeout(ALIVE):
                        await viewer.news.wait()
                except TimeoutError:
                    await _say(send, ": alive\n\n")
                if not await self._may_go_on():
                    break
                viewer.news.clear()
                events, viewer.waiting = viewer.waiting, {}
                if events:
                    await _say(send, "".join(events.values()))
            async with asyncio.timeout(1):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _say(send: Send, text: str) -> None:
    async with asyncio.timeout(SLOW):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _call_back(task: asyncio.Task[None]) -> None:
    if not task.cancelling():  # a second cancel would interrupt the request that cancels the query on the server
        task.cancel()


def _event(name: str, document: Mapping[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(document)}\n\n"


async def _watch(request: Request) -> Stream:
    hub: Hub = request.app.state.hub
    topics = hub.find(request.query_params.getlist("topic"))
    return Stream(hub, hub.enter(topics, _Way(root_of(request), may_act(request))), partial(is_session_valid, request))


routes = (Route("/live", _watch, name="live"),)
