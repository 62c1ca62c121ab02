"""The id of an enqueued job, which tells whether the job is new, and the error for a duplicate."""

from __future__ import annotations


class JobId(int):
    """Id of an enqueued job: an int with the attribute `new`.

    Example:
        >>> found = JobId(42)
        >>> found, found.new
        (42, True)
    """

    __slots__ = ()
    new = True
    """Whether the call has enqueued the job. False: the job was there, and holds the key."""


class _HolderId(JobId):
    """Id of a job that was there before the call."""

    __slots__ = ()
    new = False


class DuplicateJob(Exception):  # noqa: N818 - reads as what it is: `except DuplicateJob`
    """Raised on enqueue if another job holds the key, with `Unique(conflict="raise")`.

    Nothing was enqueued by the call, and your transaction stays usable.

    Attributes:
        id: id of the job that holds the key. None: two jobs of the call have the same key.
    """

    def __init__(self, holder: int | None) -> None:
        super().__init__(
            "two jobs of this call have the same key" if holder is None else f"job {holder} holds the same key"
        )
        self.id = holder

    def __reduce__(self) -> tuple[type[DuplicateJob], tuple[int | None]]:
        """Pickle by the id: the message is made from it."""
        return type(self), (self.id,)


def job_id(value: int) -> JobId:
    """Return the id of a job as a JobId. An id without further knowledge is that of a new job."""
    return value if isinstance(value, JobId) else JobId(value)


def known_id(value: int, *, new: bool) -> JobId:
    """Return the id of a job that is new or not."""
    return JobId(value) if new else _HolderId(value)
