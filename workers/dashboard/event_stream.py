"""Sends live updates to one viewer: an endless HTTP response of server-sent events.

The browser reconnects automatically. A viewer that accepts nothing for `SLOW` seconds is
disconnected, and so is one whose session has ended. `live_updates.py` decides what is sent.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from jobherd.workers.dashboard.cookies import is_session_valid
from jobherd.workers.dashboard.live_updates import Audience
from jobherd.workers.dashboard.request import may_act, root_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from jobherd.workers.dashboard.live_updates import Hub, Viewer

SLOW: Final = 20.0
"""Seconds without progress after which a viewer is disconnected."""
ALIVE: Final = 15.0
"""Seconds of silence after which an empty event is sent.

It detects dead connections, and keeps those behind a proxy open.
"""
LASTS: Final = 600.0
"""Seconds after which a stream ends: the browser reconnects, and is authenticated again."""
AGAIN: Final = 2000
"""Milliseconds after which a browser reconnects."""


class Stream:
    """The response to one viewer: an endless stream of events.

    It ends if the viewer disconnects, is too slow or is no longer allowed, or if the hub closes.
    is_allowed: called before each send.
    """

    def __init__(self, hub: Hub, viewer: Viewer, is_allowed: Callable[[], Awaitable[bool]]) -> None:
        self._hub = hub
        self._viewer = viewer
        self._is_allowed = is_allowed

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
            await _send_text(send, f"retry: {AGAIN}\n\n")
            until = asyncio.get_running_loop().time() + LASTS
            while not self._hub.is_closed and asyncio.get_running_loop().time() < until:
                try:
                    async with asyncio.timeout(ALIVE):
                        await viewer.news.wait()
                except TimeoutError:
                    await _send_text(send, ": alive\n\n")
                if not await self._is_allowed():
                    break
                viewer.news.clear()
                events, viewer.waiting = viewer.waiting, {}
                if events:
                    await _send_text(send, "".join(events.values()))
            async with asyncio.timeout(1):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_text(send: Send, text: str) -> None:
    async with asyncio.timeout(SLOW):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _watch(request: Request) -> Stream:
    """Return the changes of a page as server-sent events, while its tab is open."""
    hub: Hub = request.app.state.hub
    topics = hub.find(request.query_params.getlist("topic"))
    return Stream(
        hub, hub.enter(topics, Audience(root_of(request), may_act(request))), partial(is_session_valid, request)
    )


routes = (Route("/live", _watch, name="live"),)
