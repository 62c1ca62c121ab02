"""Sends live updates: one hub queries each topic once for all viewers and sends them changes.

A topic without viewers is not queried. With any number of viewers it is queried at most every
`every` seconds. Its fragment is rendered once for all viewers with the same path and permissions. A
topic that cannot change any more (`FINAL`) is queried once for each new viewer and not again; a
topic that changes seldom may say so (`PACE`). A slow viewer misses versions but never gets outdated
ones: only the latest of each topic waits for it. `event_stream.py` sends them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd.workers.dashboard.database import Away
from jobherd.workers.dashboard.render import fragment
from jobherd.workers.dashboard.request import Refused
from jobherd.workers.database.errors import error_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.applications import Starlette

    from jobherd.workers.dashboard.database import Database

    Ask = Callable[[Database, str], Awaitable[Mapping[str, object]]]

log = logging.getLogger("jobherd.dashboard")

VIEWERS: Final = 200
"""Maximum number of viewers; further ones are told to try again."""
TOPICS: Final = 16
"""Maximum number of topics of a viewer."""
FINAL: Final = "final"
"""Key of an answer; if true, nothing more will come and the browser need not watch."""
PACE: Final = "pace"
"""Key of an answer: seconds until the next query, instead of the topic's."""


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
class Audience:
    """The path and permissions of viewers. Viewers with the same ones get the same fragments."""

    root: str
    acting: bool


@dataclass(slots=True, eq=False)
class Viewer:
    audience: Audience
    waiting: dict[str, str] = field(default_factory=dict)
    """By topic, the latest event that was not sent yet."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def queue(self, key: str, event: str) -> None:
        self.waiting[key] = event
        self.news.set()


@dataclass(slots=True, eq=False)
class _Watch:
    """A topic with viewers."""

    topic: Topic
    argument: str
    viewers: set[Viewer] = field(default_factory=set)
    sent: dict[Audience, str] = field(default_factory=dict)
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
        self._viewers: set[Viewer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """Querying tasks, including canceled ones that have not ended."""
        self._closed = False

    def close(self) -> set[asyncio.Task[None]]:
        """End all streams and queries. Return the tasks to wait for.

        A canceled task first cancels its query on the server.
        """
        self._closed = True
        for viewer in self._viewers:
            viewer.news.set()
        for task in self._tasks:
            _cancel_once(task)
        return set(self._tasks)

    def find(self, keys: Iterable[str]) -> list[tuple[Topic, str]]:
        """Return the topics of these keys. Raises Refused."""
        found = []
        for key in dict.fromkeys(keys):
            name, _, argument = key.partition(":")
            if name not in self._topics or len(argument) > 200:
                raise Refused(HTTPStatus.NOT_FOUND, "This topic does not exist.")
            found.append((self._topics[name], argument))
        if not 1 <= len(found) <= TOPICS:
            raise Refused(HTTPStatus.BAD_REQUEST, f"Request 1 to {TOPICS} topics.")
        return found

    def enter(self, topics: Iterable[tuple[Topic, str]], audience: Audience) -> Viewer:
        """Add a viewer. Raises Refused."""
        if self._closed or len(self._viewers) >= VIEWERS:
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many viewers, or the server is shutting down; try again."
            )
        viewer = Viewer(audience)
        self._viewers.add(viewer)
        for topic, argument in topics:
            key = f"{topic.name}:{argument}" if argument else topic.name
            watch = self._watched.setdefault(key, _Watch(topic, argument))
            watch.viewers.add(viewer)
            if audience in watch.sent:
                viewer.queue(key, watch.sent[audience])
            if watch.task is None:
                watch.task = asyncio.get_running_loop().create_task(self._query_repeatedly(watch))
                self._tasks.add(watch.task)
                watch.task.add_done_callback(self._tasks.discard)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer; topics without viewers are no longer queried."""
        self._viewers.discard(viewer)
        for key, watch in list(self._watched.items()):
            watch.viewers.discard(viewer)
            if not watch.viewers:
                del self._watched[key]
                if watch.task is not None:
                    _cancel_once(watch.task)

    @property
    def is_closed(self) -> bool:
        """Whether the streams must end."""
        return self._closed

    async def _query_repeatedly(self, watch: _Watch) -> None:
        while True:
            started, every = self._clock(), watch.topic.every
            try:
                context = await watch.topic.ask(self._database, watch.argument)
                self._spread(watch, context)
                if context.get(FINAL):
                    self._end(watch)
                    return
                pace = context.get(PACE)
                every = pace if isinstance(pace, float) else watch.topic.every
            except Away as away:
                self._send_to_all(watch, "outage", {"since": away.since.isoformat()})
            except psycopg.Error as problem:
                # A statement took too long, or the schema is of another version: show it and
                # continue.
                log.warning("live: %s could not be queried (%s)", watch.topic.name, error_name(problem))
                self._send_to_all(watch, "trouble", {"topic": watch.key, "reason": error_name(problem)})
            except Exception:
                log.exception("live: %s failed", watch.topic.name)
                self._send_to_all(
                    watch,
                    "trouble",
                    {"topic": watch.key, "reason": "a defect in the dashboard; the supervisor's log has the details"},
                )
            # Cost: wait until `every` seconds after the start, and at least as long as the query
            # took. A slow query must not run all the time.
            took = self._clock() - started
            await asyncio.sleep(max(every - took, took))

    def _spread(self, watch: _Watch, context: Mapping[str, object]) -> None:
        """Render the fragment once for each path and permission.

        Queue it for the viewers that do not have this version.
        """
        audiences = {viewer.audience for viewer in watch.viewers}
        for audience in audiences:
            html = fragment(self._app, audience.root, watch.topic.template, context, acting=audience.acting)
            event = _event("fragment", {"topic": watch.key, "html": html})
            if watch.sent.get(audience) != event:
                watch.sent[audience] = event
                for viewer in watch.viewers:
                    if viewer.audience == audience:
                        viewer.queue(watch.key, event)
        for gone in watch.sent.keys() - audiences:
            del watch.sent[gone]

    def _end(self, watch: _Watch) -> None:
        """Notify viewers that the topic is final."""
        watch.task = None  # a new viewer causes a new query
        event = _event("final", {"topic": watch.key})
        for viewer in watch.viewers:
            viewer.queue(f"{watch.key} final", event)

    def _send_to_all(self, watch: _Watch, name: str, document: Mapping[str, object]) -> None:
        event = _event(name, document)
        watch.sent.clear()  # the next event counts as new: it ends the trouble on the page
        for viewer in watch.viewers:
            viewer.queue(watch.key, event)


def _cancel_once(task: asyncio.Task[None]) -> None:
    if not task.cancelling():  # a second cancel would interrupt the request that cancels the query on the server
        task.cancel()


def _event(name: str, document: Mapping[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(document)}\n\n"
