"""Child jobs that a job enqueues once, and waits for without a worker: `job.spawn` and `job.gather`.

The children of a step are the members of a flow. This module contains no SQL statement: the host of
the job's steps enqueues, waits and records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args, overload

from jobherd.handlers._run.call_checks import check_call, check_calls
from jobherd.handlers._run.child_jobs import ChildJob, ChildJobs, OnParentCancel, Spawned
from jobherd.handlers._run.steps import check_name

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from jobherd.handlers._run.child_jobs import ChildCall, Children
    from jobherd.handlers._run.transaction import TransactionHost

R = TypeVar("R")


class Parent:
    """Base of `Job`, with the methods for child jobs."""

    __slots__ = ()
    transaction_host: TransactionHost

    @overload
    def spawn(
        self,
        call: ChildCall[Coroutine[Any, Any, R]],
        name: str | None = None,
        *,
        on_parent_cancel: OnParentCancel = "cancel",
    ) -> ChildJob[R]: ...
    @overload
    def spawn(
        self, call: ChildCall[R], name: str | None = None, *, on_parent_cancel: OnParentCancel = "cancel"
    ) -> ChildJob[R]: ...
    def spawn(
        self, call: ChildCall[Any], name: str | None = None, *, on_parent_cancel: OnParentCancel = "cancel"
    ) -> ChildJob[Any]:
        """Enqueue one child job as a durable step: exactly once, however many attempts the job has.

        Args:
            call: the child job, made by `Handler.call`.
            name: name of the step. Default: its number in the attempt, `spawn:1`. Give one if the
                order can change between attempts.
            on_parent_cancel: "cancel": if this job is canceled, the child is too. "leave": it is not.

        Returns:
            The child job, for `gather`.

        Raises:
            TypeError: the handler does not take these arguments, or its jobs cannot be children.
            PayloadError: a value cannot be encoded as JSON or does not fit its annotation.
            StepError: as `step`.

        Example:
            >>> invoice = job.spawn(make_invoice.call(7))  # doctest: +SKIP
            >>> job.gather(invoice)  # doctest: +SKIP
            'invoices/7.pdf'
        """
        check_call(call, "spawn: the argument")
        return ChildJob(self._spawned(name, [call], on_parent_cancel), [call.returned])

    @overload
    def spawn_many(
        self,
        name: str,
        calls: Iterable[ChildCall[Coroutine[Any, Any, R]]],
        *,
        on_parent_cancel: OnParentCancel = "cancel",
    ) -> ChildJobs[R]: ...
    @overload
    def spawn_many(
        self, name: str, calls: Iterable[ChildCall[R]], *, on_parent_cancel: OnParentCancel = "cancel"
    ) -> ChildJobs[R]: ...
    def spawn_many(
        self, name: str, calls: Iterable[ChildCall[Any]], *, on_parent_cancel: OnParentCancel = "cancel"
    ) -> ChildJobs[Any]:
        """Enqueue child jobs as one durable step: all of them exactly once.

        A later attempt returns the children of the first one, and does not use `calls`.

        Args:
            name: name of the step, unique in the job.
            calls: the child jobs, made by `Handler.call`, up to 100,000.
            on_parent_cancel: as for `spawn`.

        Returns:
            The child jobs, for `gather`.

        Raises:
            TypeError: as `spawn`.
            ValueError: there are more than 100,000.
            PayloadError: as `spawn`.
            StepError: as `step`.

        Example:
            >>> labels = job.gather(job.spawn_many("labels", [label.call(n) for n in items]))  # doctest: +SKIP
        """
        given = check_calls(calls, "spawn_many")
        return ChildJobs(self._spawned(check_name(name), given, on_parent_cancel), [call.returned for call in given])

    @overload
    def gather(self, children: ChildJob[R], *, return_exceptions: bool = False) -> R: ...
    @overload
    def gather(self, children: ChildJobs[R], *, return_exceptions: bool = False) -> list[R]: ...
    def gather(self, children: Children[Any], *, return_exceptions: bool = False) -> Any:
        """Suspend the job until child jobs have ended, and return their results.

        The handler ends here by JobSuspended and is called again when all of them have ended. The
        attempt is not counted, and the job holds no worker meanwhile. Then this returns at once, in
        later attempts too.

        Args:
            children: what `spawn` or `spawn_many` has returned.
            return_exceptions: return a ChildJobFailed in the place of each child that has not
                completed. Default: raise the first one.

        Returns:
            The result of the child of `spawn`, or the list of results in the order of the calls,
            converted to the types that the annotations of their handlers say.

        Raises:
            JobSuspended: let it pass. A handler that swallows it fails permanently.
            ChildJobFailed: a child has not completed. This is not recorded: run the failed children
                again, then this job, and it waits for them again.
            StepError: as `step`.

        Example:
            >>> job.gather(job.spawn_many("labels", [label.call(1), label.call(2)]))  # doctest: +SKIP
            ['labels/1', 'labels/2']
        """
        spawned = Spawned(children.name, children.flow, len(children))
        record = self.transaction_host.steps.gather(self, spawned, failures=return_exceptions)
        results = children.results(record, return_exceptions=return_exceptions)
        return results[0] if isinstance(children, ChildJob) else results

    @overload
    async def aspawn(
        self,
        call: ChildCall[Coroutine[Any, Any, R]],
        name: str | None = None,
        *,
        on_parent_cancel: OnParentCancel = "cancel",
    ) -> ChildJob[R]: ...
    @overload
    async def aspawn(
        self, call: ChildCall[R], name: str | None = None, *, on_parent_cancel: OnParentCancel = "cancel"
    ) -> ChildJob[R]: ...
    async def aspawn(
        self, call: ChildCall[Any], name: str | None = None, *, on_parent_cancel: OnParentCancel = "cancel"
    ) -> ChildJob[Any]:
        """`spawn` for coroutines."""
        return self.spawn(call, name, on_parent_cancel=on_parent_cancel)

    @overload
    async def aspawn_many(
        self,
        name: str,
        calls: Iterable[ChildCall[Coroutine[Any, Any, R]]],
        *,
        on_parent_cancel: OnParentCancel = "cancel",
    ) -> ChildJobs[R]: ...
    @overload
    async def aspawn_many(
        self, name: str, calls: Iterable[ChildCall[R]], *, on_parent_cancel: OnParentCancel = "cancel"
    ) -> ChildJobs[R]: ...
    async def aspawn_many(
        self, name: str, calls: Iterable[ChildCall[Any]], *, on_parent_cancel: OnParentCancel = "cancel"
    ) -> ChildJobs[Any]:
        """`spawn_many` for coroutines."""
        return self.spawn_many(name, calls, on_parent_cancel=on_parent_cancel)

    @overload
    async def agather(self, children: ChildJob[R], *, return_exceptions: bool = False) -> R: ...
    @overload
    async def agather(self, children: ChildJobs[R], *, return_exceptions: bool = False) -> list[R]: ...
    async def agather(self, children: Any, *, return_exceptions: bool = False) -> Any:
        """`gather` for coroutines."""
        return self.gather(children, return_exceptions=return_exceptions)

    def _spawned(self, name: str | None, calls: Sequence[ChildCall[Any]], on_parent_cancel: str) -> Spawned:
        if on_parent_cancel not in get_args(OnParentCancel):
            message = f"on_parent_cancel is 'cancel' or 'leave', not {on_parent_cancel!r}"
            raise ValueError(message)
        leaves = on_parent_cancel == "leave"
        return self.transaction_host.steps.spawn(self, None if name is None else check_name(name), calls, leaves=leaves)
