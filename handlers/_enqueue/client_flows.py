"""The methods of the synchronous client for flows: cancel, seal, retry."""

from __future__ import annotations

from jobherd.handlers._enqueue import statements
from jobherd.handlers._enqueue.client_sessions import ClientSessions


class ClientFlows(ClientSessions):
    """Cancels, seals and retries flows. See `Client`."""

    def cancel_flow(self, flow_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Cancel all jobs of a flow that have not ended.

        Args:
            flow_id: id of the flow.
            actor: who cancels it, for the audit log. Default: the database user.
            reason: why, for the audit log. Default: none.

        Returns:
            "cancelling"; the state of a flow that has ended, which stays as it is; or None if the flow does not exist.
        """
        return self.run(statements.cancel_flow(flow_id, actor, reason), flow_id)

    def retry_flow(
        self, flow_id: int, from_node: str | None = None, *, actor: str | None = None, reason: str | None = None
    ) -> int | None:
        """Run the failed and canceled jobs of a flow again. Completed jobs stay.

        Args:
            flow_id: id of the flow.
            from_node: run this node and all nodes behind it again instead, also of a completed flow.
            actor: who runs it again, for the audit log. Default: the database user.
            reason: why, for the audit log. Default: none.

        Returns:
            How many jobs run again; 0 if the flow is open or completed; or None if the flow does not exist.

        Raises:
            psycopg.errors.InvalidParameterValue: the flow has no such node, or its jobs cannot be made again.
        """
        return self.run(statements.retry_flow(flow_id, from_node, actor, reason), flow_id)

    def seal_flow(self, flow_id: int) -> str | None:
        """Let a flow of `Flow(..., sealed=False)` end when its jobs have. Then only they can still add jobs.

        The call waits for open transactions that are adding jobs.

        Args:
            flow_id: id of the flow.

        Returns:
            "sealed"; the state of a flow that has ended; or None if the flow does not exist.
        """
        return self.run(statements.seal_flow(flow_id), flow_id)
