"""The life of the gateway's process: it opens the server, passes on wake-ups, drains, and exits.

It runs one event loop in the main thread. If the address is in use, the gateway is missing but no
job is affected: the process logs it once, stays, and tries again.

This module must not import gRPC before `run` has set the environment: gRPC reads it when its
library is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.database.backoff import Backoff
from jobherd.workers.database.waiting import StopWaiting
from jobherd.workers.gateway.access import AccessError
from jobherd.workers.gateway.access_file import LiveAccess
from jobherd.workers.gateway.coordinator import Coordinator
from jobherd.workers.gateway.database import Database
from jobherd.workers.gateway.state import Limits
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import EXIT_REQUESTED, Problem, Ready, send
from jobherd.workers.process.environment import GRPC_ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc.aio

    from jobherd.workers.gateway.authentication import Authenticator
    from jobherd.workers.gateway.service import Service
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.spec import ChildSpec

_log = logging.getLogger("jobherd.gateway")

RETRY: Final = (1.0, 30.0)
"""Seconds between two attempts to open the server: the first, doubled up to the second."""
LOOK: Final = 1.0
"""Seconds between two checks of the access file."""
ENDING: Final = 2.0
"""Seconds that calls under way have to end when the process exits."""


def run(context: ChildContext) -> int:
    """Serve until dismissed, and return the exit code.

    Signals must be unblocked, and nothing of the supervisor may be left in this process.
    """
    os.environ.update(GRPC_ENVIRONMENT)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(Gateway(context).live())
    finally:
        # Race: asyncio closes one end of its socket first. A signal would write to the other one, which
        # raises SIGPIPE, whose handler would write again, and so on.
        signal.set_wakeup_fd(-1)
        loop.close()
    return EXIT_REQUESTED


class Gateway:
    """The process. Make it in a thread whose event loop is about to run `live`."""

    def __init__(self, context: ChildContext) -> None:
        self._spec = context.spec
        self._wake = context.wake
        self._title = context.title
        self._dismissed = asyncio.Event()
        self._hurried = asyncio.Event()
        """Nothing may take any more time."""
        self._services: Sequence[Service] = ()
        self._authenticator: Authenticator | None = None
        self._error: BaseException | None = None
        self._database = Database(context.spec)
        self._coordinator = Coordinator(context.spec, self._database, _limits(context.spec))

    async def live(self) -> None:
        """Open the server, serve until dismissed, and drain."""
        loop, spec = asyncio.get_running_loop(), self._spec
        loop.set_exception_handler(self._on_error)
        loop.add_signal_handler(signal.SIGTERM, self._on_term)
        if self._wake.dismissed:
            self._dismissed.set()  # the signal came before this handler
        loop.add_reader(spec.wake, self._read_wake)
        coordinating = loop.create_task(self._coordinate())
        opening = loop.create_task(self._open())
        checking = loop.create_task(self._check_access())
        dismissed = loop.create_task(self._dismissed.wait())
        try:
            await asyncio.wait((opening, dismissed), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                server = opening.result()
                await dismissed
                await self._drain(server)
        finally:
            self._database.close()
            for task in (opening, coordinating, checking):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            if self._error is not None:
                raise self._error
            loop.remove_reader(spec.wake)
            spec.board.say(CurrentWork(Phase.LEAVING))
            self._title("exits")

    async def _coordinate(self) -> None:
        """Serve streams with jobs until the supervisor is dead or was reclaimed."""
        try:
            await self._coordinator.run()
        except StopWaiting as reason:
            _log.info("exiting: %s", reason)
        finally:
            self._hurried.set()
            self._dismissed.set()

    async def _check_access(self) -> None:
        """End the streams of clients whose token or certificate was withdrawn from the access file."""
        while self._spec.settings.gateway_access is not None:
            await asyncio.sleep(LOOK)
            if self._authenticator is not None:
                self._coordinator.withdraw(self._authenticator.admits)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error of Jobherd's own in a callback: the bookkeeping may be wrong, so end this process."""
        self._error = self._error or context.get("exception")
        if self._error is None:
            loop.default_exception_handler(context)
            return
        self._hurried.set()
        self._dismissed.set()

    # -- the server

    async def _open(self) -> grpc.aio.Server:
        """Serve on the address, now or once it is free. Report READY either way.

        Otherwise the start of the fleet would hang on a port that only remote workers need.
        """
        await self._coordinator.connected.wait()
        address = self._spec.settings.gateway
        shown = address if isinstance(address, str) else "{}:{}".format(*(address or ()))
        backoff = Backoff(*RETRY)
        while True:
            try:
                server, where = self._make()
                break
            except NotOpenError as problem:
                if not backoff.delay:
                    text = f"the gateway is off: {problem}; trying again"
                    self._title(f"waits for {shown}")
                    if not send(self._spec.report, Problem(text)):  # The supervisor logs it.
                        _log.warning("%s", text)
                    self._report_ready()
            await asyncio.sleep(backoff.next())
        await server.start()
        if not backoff.delay:
            self._report_ready()
        self._title(f"serves {where}")
        _log.info("gateway on %s", where)
        return server

    def _make(self) -> tuple[grpc.aio.Server, str]:
        """Return a server that is bound to the address, and the address for people. Raises NotOpenError."""
        # The environment must be set before gRPC is loaded.
        from jobherd.workers.gateway import server as servers  # noqa: PLC0415
        from jobherd.workers.gateway import tls  # noqa: PLC0415
        from jobherd.workers.gateway.authentication import Authenticator  # noqa: PLC0415

        settings = self._spec.settings
        address = settings.gateway
        assert address is not None, "there is a gateway only if it has an address"
        try:
            credentials = (
                None
                if settings.gateway_cert is None or settings.gateway_key is None
                else tls.Certificates(
                    settings.gateway_cert, settings.gateway_key, settings.gateway_client_ca
                ).credentials()
            )
            access = LiveAccess(
                settings.gateway_token,
                settings.gateway_access,
                certificates=settings.gateway_client_ca is not None,
            )
        except tls.TlsError as problem:
            raise NotOpenError(f"TLS cannot be used: {problem}") from None
        except AccessError as problem:
            raise NotOpenError(f"gateway_access = {settings.gateway_access}: {problem}") from None
        self._authenticator = Authenticator(access, self._coordinator.metrics.refused)
        services = self._make_services(self._authenticator)
        server = servers.make_server((each.handler() for each in services), streams=settings.gateway_streams)
        if settings.gateway_reflection and not servers.describe(server):
            _log.warning("gateway_reflection has no effect: install grpcio-reflection in a version for this protobuf")
        try:
            where = servers.listen(server, address, credentials)
        except servers.CannotListenError as problem:
            shown = address if isinstance(address, str) else "{}:{}".format(*address)
            raise NotOpenError(f"cannot listen on {shown} ({problem}); free it or set --gateway") from None
        self._services = services
        return server, where

    def _make_services(self, authenticator: Authenticator) -> Sequence[Service]:
        # They load gRPC.
        from jobherd.workers.gateway.dispatch_service import DispatchService  # noqa: PLC0415
        from jobherd.workers.gateway.health import Health  # noqa: PLC0415
        from jobherd.workers.gateway.producer_service import ProducerService  # noqa: PLC0415
        from jobherd.workers.gateway.worker_service import WorkerService  # noqa: PLC0415

        return (
            Health(self._may_claim),
            WorkerService(self._coordinator, authenticator),
            DispatchService(self._coordinator, authenticator),
            ProducerService(self._spec.settings.dsn, self._spec.settings.schema, authenticator),
        )

    def _may_claim(self) -> bool:
        return time.monotonic() < self._spec.control.lease_deadline

    def _report_ready(self) -> None:
        self._spec.board.say(CurrentWork(Phase.IDLE))
        session = self._database.session
        send(self._spec.report, Ready(session.child, session.backend))

    # -- the end

    async def _drain(self, server: grpc.aio.Server) -> None:
        """Let clients finish what they have, then end the server."""
        self._spec.board.say(CurrentWork(Phase.LEAVING))
        self._title("drains")
        self._coordinator.drain(self._spec.settings.drain_timeout)
        loop = asyncio.get_running_loop()
        drains = [loop.create_task(service.drain()) for service in self._services]
        hurried = loop.create_task(self._hurried.wait())
        drained = asyncio.gather(*drains)
        await asyncio.wait(
            (drained, hurried), timeout=self._spec.settings.drain_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        stopping = loop.create_task(server.stop(None if hurried.done() else ENDING))
        hurried.cancel()
        # It can wait indefinitely for a call that was aborted. This process is about to exit.
        await asyncio.wait((stopping,), timeout=2 * ENDING)
        if drained.done():
            drained.result()
        drained.cancel()
        with suppress(asyncio.CancelledError):
            await drained  # or the loop reports an error that was never retrieved

    def _on_term(self) -> None:
        """Drain; at a second signal, or if the supervisor is dead, end at once."""
        if self._dismissed.is_set() or os.getppid() != self._spec.parent:
            self._hurried.set()
        self._dismissed.set()

    def _read_wake(self) -> None:
        try:
            word = os.read(self._spec.wake, 65536)
        except BlockingIOError:
            return
        if word:
            self._database.wake()
            self._coordinator.wake()
            for service in self._services:
                service.wake()
            return
        asyncio.get_running_loop().remove_reader(self._spec.wake)  # a closed pipe is always readable
        if not self._spec.board.dismissed:
            self._hurried.set()  # the supervisor is dead, and clients reconnect to another gateway
        self._dismissed.set()


def _limits(spec: ChildSpec) -> Limits:
    settings = spec.settings
    return Limits(
        session_lease=settings.gateway_lease,
        task_lease=settings.gateway_task_lease,
        linger=settings.gateway_linger,
        streams=settings.gateway_streams,
        slots=settings.gateway_max_slots,
        poll=settings.poll,
    )


class NotOpenError(Exception):
    """The server cannot be opened now. The text says why, for people."""
