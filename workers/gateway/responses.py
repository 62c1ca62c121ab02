"""The messages of the protocol that tell a worker what the bookkeeping has decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.handlers._remote import messages as m
from jobherd.workers.gateway.actions import CancelTask, Reason, SendDrain, SendHeartbeatAck, SendReleaseRest, Welcome

if TYPE_CHECKING:
    from jobherd.workers.gateway.actions import TaskRef
    from jobherd.workers.gateway.peer import Worker
    from jobherd.workers.gateway.state import Limits


GONE: Final = "the session has ended; open a new one"
AWAY: Final = "the gateway cannot open sessions now; try again, or another gateway"
LOST: Final = "the worker does not own this task any more: its lease expired, or another worker has it"
UNSTORABLE: Final = "PostgreSQL rejects this result; a fixed text was recorded instead"


def response(
    action: Welcome | SendHeartbeatAck | CancelTask | SendReleaseRest | SendDrain, worker: Worker, limits: Limits
) -> m.WorkResponse:
    """Return the message that carries out an action."""
    match action:
        case Welcome():
            tenants = worker.principal.tenants
            ack = m.HelloAck(
                worker_id=worker.name,
                tenant_id=tenants[0] if len(tenants) == 1 else "",
                session=str(action.session),
                kinds=worker.principal.kinds,
                queues=worker.principal.queues,
                lost=[_ref(ref) for ref in action.lost],
                session_seconds=action.session_seconds,
                lease_seconds=limits.task_lease,
                max_slots=limits.slots,
            )
            return m.WorkResponse(hello_ack=ack)
        case SendHeartbeatAck():
            lost = [_ref(ref) for ref in action.lost]
            beat = m.HeartbeatAck(number=action.number, lost=lost, session_seconds=action.session_seconds)
            return m.WorkResponse(heartbeat_ack=beat)
        case CancelTask():
            reason = m.Cancel.REASON_LOST if action.reason is Reason.LOST else m.Cancel.REASON_CANCELLED
            return m.WorkResponse(cancel=m.Cancel(task=_ref(action.task), reason=reason))
        case SendReleaseRest():
            return m.WorkResponse(release_rest=m.ReleaseRest())
        case SendDrain():
            return m.WorkResponse(drain=m.Drain(within_seconds=action.within))


def _ref(ref: TaskRef) -> m.TaskRef:
    return m.TaskRef(task_id=ref.task, claim=ref.claim)


def refusal(ref: TaskRef, reason: int, message: str) -> m.Refusal:
    """Return the message that rejects a result."""
    return m.Refusal(task=m.TaskRef(task_id=ref.task, claim=ref.claim), reason=reason, message=message)
