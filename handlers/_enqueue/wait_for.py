"""Waits for jobs on sessions, synchronous or asynchronous. The two variants differ only in `await`.

`CompletionWait` keeps what is known and decides when to query; this module uses the sessions.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import psycopg

from jobherd.handlers._enqueue import statements
from jobherd.handlers._enqueue.answer_deadline import aanswered, answered
from jobherd.handlers._enqueue.dsn import find_listen_dsn, session_of
from jobherd.handlers._enqueue.pool import UNANSWERED
from jobherd.handlers._enqueue.send import arun_on, run_on
from jobherd.handlers._enqueue.waiting import listen_statements

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from jobherd.handlers._enqueue.send import AsyncDriver, Connection
    from jobherd.handlers._enqueue.waiting import CompletionWait


def wait_for(
    wait: CompletionWait,
    session: Callable[[float | None], AbstractContextManager[Connection]],
    *,
    dsn: str | None,
    is_own: bool,
) -> dict[int, dict[str, Any]]:
    """Return the rows of the jobs once all are finished.

    Args:
        wait: the jobs.
        session: lends a session within some seconds.
        dsn: address of the database, as the client got it.
        is_own: the session is the caller's, and is queried at intervals; else listen on a session.
    """
    due = wait.due()
    try:
        with session(wait.connecting()) as connection:
            _query(wait, due, connection, is_own=is_own)
    except UNANSWERED as problem:
        wait.unanswered(problem)
    while wait.left and is_own:
        time.sleep(wait.pause())
        with session(None) as connection:
            _query(wait, wait.due(), connection, is_own=True)
    while wait.left:
        wait.pause()
        try:
            _listen(wait, dsn)
        except UNANSWERED as problem:
            wait.unanswered(problem)
    return wait.rows()


def _listen(wait: CompletionWait, dsn: str | None) -> None:
    """Wait on a session that listens for finished jobs, until all are finished.

    Raises SilentError if the session does not answer.
    """
    dsn, listens = find_listen_dsn(dsn)
    with psycopg.connect(dsn, **session_of(dsn, wait.connecting())) as listener:
        with answered(listener, wait.within()):
            backend = listener.info.backend_pid
            if run_on(listener, statements.disable_jit(backend), schema=wait.schema) == backend or listens:
                for statement in listen_statements(wait):
                    run_on(listener, statement, schema=wait.schema)
            else:
                wait.cannot_listen()
                listener.prepare_threshold = None
        due = list(wait.left)
        while True:
            if due:
                _query(wait, due, listener, is_own=False)
            if not wait.left:
                break
            for note in listener.notifies(timeout=wait.pause(), stop_after=1):
                wait.on_notification(note.payload)
            due = wait.due()


def _query(wait: CompletionWait, due: list[int], connection: Connection, *, is_own: bool) -> None:
    statement = statements.show_jobs(due)
    if is_own:
        rows = run_on(connection, statement, schema=wait.schema)
    else:
        with answered(connection, wait.within()):
            rows = run_on(connection, statement, schema=wait.schema)
    wait.found(due, rows)


async def await_for(
    wait: CompletionWait,
    session: Callable[[float | None], AbstractAsyncContextManager[AsyncDriver]],
    *,
    dsn: str | None,
    is_own: bool,
) -> dict[int, dict[str, Any]]:
    """`wait_for`, for coroutines."""
    due = wait.due()
    try:
        async with session(wait.connecting()) as connection:
            await _aquery(wait, due, connection, is_own=is_own)
    except UNANSWERED as problem:
        wait.unanswered(problem)
    while wait.left and is_own:
        await asyncio.sleep(wait.pause())
        async with session(None) as connection:
            await _aquery(wait, wait.due(), connection, is_own=True)
    while wait.left:
        wait.pause()
        try:
            await _alisten(wait, dsn)
        except UNANSWERED as problem:
            wait.unanswered(problem)
    return wait.rows()


async def _alisten(wait: CompletionWait, dsn: str | None) -> None:
    dsn, listens = find_listen_dsn(dsn)
    async with await psycopg.AsyncConnection.connect(dsn, **session_of(dsn, wait.connecting())) as listener:
        with aanswered(listener, wait.within()):
            backend = listener.info.backend_pid
            if await arun_on(listener, statements.disable_jit(backend), schema=wait.schema) == backend or listens:
                for statement in listen_statements(wait):
                    await arun_on(listener, statement, schema=wait.schema)
            else:
                wait.cannot_listen()
                listener.prepare_threshold = None
        due = list(wait.left)
        while True:
            if due:
                await _aquery(wait, due, listener, is_own=False)
            if not wait.left:
                break
            async for note in listener.notifies(timeout=wait.pause(), stop_after=1):
                wait.on_notification(note.payload)
            due = wait.due()


async def _aquery(wait: CompletionWait, due: list[int], connection: AsyncDriver, *, is_own: bool) -> None:
    statement = statements.show_jobs(due)
    if is_own or not isinstance(connection, psycopg.AsyncConnection):
        rows = await arun_on(connection, statement, schema=wait.schema)
    else:
        with aanswered(connection, wait.within()):
            rows = await arun_on(connection, statement, schema=wait.schema)
    wait.found(due, rows)
