"""The session of a worker without a database: it leads to the uplink of its supervisor.

An uplink that is away is to it what a database that is away is to other workers: the process waits,
keeps its claim, and continues. So all waiting and repeating is inherited, and only the opening of a
session differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from jobherd.handlers._remote import messages as m
from jobherd.workers.database.connection import Session
from jobherd.workers.database.reconnecting import socket_identity
from jobherd.workers.remote.connection import UplinkConnection
from jobherd.workers.remote.held_file import write_held
from jobherd.workers.remote.wire import RemoteWire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.workers.database.opening import Row
    from jobherd.workers.process.spec import ChildSpec, UplinkSettings
    from jobherd.workers.process.wakeup import Wake


class RemoteSession(Session):
    """The session of a worker of `jobherd work`.

    declared: what Hello says about the kinds of this worker.
    """

    server = "the uplink"

    def __init__(
        self,
        spec: ChildSpec,
        wake: Wake,
        holding: Callable[[], Sequence[int]],
        uplink: UplinkSettings,
        declared: Sequence[m.KindPolicy],
    ) -> None:
        super().__init__(spec, wake, holding)
        self._uplink = uplink
        self._declared = declared
        self._held: dict[int, list[int]] = {}

    def _open(self) -> None:
        spec, uplink = self._spec, self._uplink
        connection = UplinkConnection(uplink.folder)
        known = self._holding()
        self._held = {token: jobs for token, jobs in self._held.items() if token in known}
        held = [m.TaskRef(task_id=job, claim=token) for token, jobs in self._held.items() for job in jobs]
        connection.send(m.WorkRequest(hello=m.Hello(worker_id=str(spec.incarnation), kinds=self._declared, held=held)))
        connection.receive(None)
        # They have what `Session` uses of a connection and of a wire.
        self._connection = cast("Any", connection)
        wire = RemoteWire(
            connection,
            self._held,
            self._write_held,
            kinds=[policy.kind for policy in self._declared],
            queues=spec.settings.served,
            lease=uplink.task_lease,
        )
        self._wire = cast("Any", wire)
        self._socket = socket_identity(cast("Any", connection))
        self._wake.source = wire
        self.child = spec.incarnation
        self.sessions += 1
        spec.board.set_database(connected=True)
        self._note_back()

    def _write_held(self) -> None:
        write_held(self._uplink.folder, self._spec.incarnation, self._held)

    def _requeue_unacknowledged(self) -> list[Row]:
        """Hello names what this worker holds, and the uplink releases everything else."""
        return []
