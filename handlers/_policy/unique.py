"""What makes a job unique: `Unique`, checked where it is written.

Must not decide whether a job is a duplicate: the database does, since only it sees all jobs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from jobherd.handlers._policy.names import shown

During: TypeAlias = Literal["live", "waiting", "never"]
Conflict: TypeAlias = Literal["ignore", "raise", "replace", "collect"]
Edge: TypeAlias = Literal["leading", "trailing"]

_NAME: Final = re.compile(r"[^.$\[\]]+")
_PATH: Final = re.compile(r"\$(?:\.[^.$\[\]]+|\[\d{1,9}\])+")
_PART: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_MOST_FIELDS: Final = 20
_LONGEST_KEY: Final = 1000


@dataclass(frozen=True, slots=True)
class Unique:
    """What makes a job unique, and what happens to a second one.

    Jobs of other kinds and of other tenants never conflict.

    Args:
        by: fields of the payload, as names or paths such as "$.doc.id". Default: the whole payload.
            A missing field counts as null.
        queue: whether each queue has its own keys. Default False.
        during: states in which a job holds its key. "live", the default: until it has finished.
            "waiting": until its first attempt starts. "never": only for the time `unique_for`.
        conflict: what an enqueue does if another job holds the key. "ignore", the default, returns
            the id of that job. "raise" raises DuplicateJob. "replace" gives that job the new payload
            and options while it waits. "collect" appends the list in the field `collect` to that of
            the waiting job. Once that job has started, both enqueue a new one.
        collect: name of the field with the list, for `conflict="collect"`.

    Raises:
        TypeError, ValueError: a value is invalid.

    Example:
        >>> Unique(by=("$.doc.id",), during="waiting").paths
        {'$.doc.id': ['doc', 'id']}
    """

    by: str | Sequence[str] | None = None
    queue: bool = False
    during: During = "live"
    conflict: Conflict = "ignore"
    collect: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.by is not None:
            names: tuple[object, ...] = (self.by,) if isinstance(self.by, str) else tuple(self.by)
            if not 1 <= len(names) <= _MOST_FIELDS:
                message = f"by must name 1 to {_MOST_FIELDS} fields of the payload, not {len(names)}"
                raise ValueError(message)
            for name in names:
                if not isinstance(name, str) or not (_NAME.fullmatch(name) or _PATH.fullmatch(name)):
                    message = (
                        f"by takes names of fields and paths, like ('order_id',) or ('$.doc.id',), not {shown(name)}"
                    )
                    raise ValueError(message)
            object.__setattr__(self, "by", names)
        queue: object = self.queue
        if not isinstance(queue, bool):
            message = f"queue must be True or False, not {shown(queue)}"
            raise TypeError(message)
        for field, known in (("during", get_args(During)), ("conflict", get_args(Conflict))):
            value = getattr(self, field)
            if value not in known:
                message = f"{field} must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}, not {shown(value)}"
                raise ValueError(message)
        self._check_conflict()

    def _check_conflict(self) -> None:
        if (self.conflict == "collect") != (self.collect is not None):
            message = "conflict='collect' and collect='items', the name of the list, belong together"
            raise ValueError(message)
        if self.collect is not None and (not _NAME.fullmatch(self.collect) or self.collect in (self.by or ())):
            message = f"collect must name a field of the payload that is not in by, not {shown(self.collect)}"
            raise ValueError(message)
        if self.changes and self.during == "never":
            message = f"conflict={self.conflict!r} changes a job that waits, so it excludes during='never'"
            raise ValueError(message)

    @property
    def changes(self) -> bool:
        """Whether a second enqueue changes the job that waits."""
        return self.conflict in {"replace", "collect"}

    @property
    def paths(self) -> dict[str, list[str]]:
        """The path of each field, by its name. Empty: the whole payload."""
        return {name: _parts(name) for name in self.by or ()}

    def pick(self, payload: object) -> object:
        """Return what makes this payload unique, as the database picks it."""
        return {name: _follow(payload, path) for name, path in self.paths.items()} if self.by else payload


UniqueLike: TypeAlias = bool | str | Sequence[str] | Unique


def check_unique(value: object, *, field: str) -> Unique | None:
    """Return `value` as a Unique, or None for False.

    >>> check_unique(("order_id",), field="unique").paths
    {'order_id': ['order_id']}
    """
    match value:
        case None | False:
            return None
        case True:
            return Unique()
        case Unique():
            return value
        case str() | list() | tuple():
            return Unique(by=value)
    message = (
        f"{field} must be True, the fields of the payload that make a job unique, like ('order_id',), "
        f"or a Unique, not {shown(value)}"
    )
    raise TypeError(message)


def check_edge(value: object, *, field: str) -> Edge:
    """Return `value` if it is an edge, or raise ValueError with the rule."""
    if value == "leading" or value == "trailing":  # noqa: PLR1714 - narrows the type
        return value
    message = f"{field} must be 'leading' or 'trailing', not {shown(value)}"
    raise ValueError(message)


def check_key(value: object, *, field: str) -> str:
    """Return a valid text of a key, or raise TypeError or ValueError with the rule."""
    if not isinstance(value, str):
        message = f"{field} must be a text like 'receipt:7', not {shown(value)}"
        raise TypeError(message)
    if not 1 <= len(value) <= _LONGEST_KEY or "\0" in value or not value.isprintable():
        message = f"{field} must be 1 to {_LONGEST_KEY} printable characters"
        raise ValueError(message)
    return value


def check_partition_by(value: object, *, field: str) -> tuple[str, ...]:
    """Return the path to the field of the payload that names a job's partition. Empty: its tenant.

    >>> check_partition_by("$.customer.id", field="partition")
    ('customer', 'id')
    """
    if not isinstance(value, str) or not (_NAME.fullmatch(value) or _PATH.fullmatch(value)):
        message = (
            f"{field} must name a field of the payload, like 'customer_id' or '$.customer.id', or be 'tenant', "
            f"not {shown(value)}"
        )
        raise ValueError(message)
    return () if value == "tenant" else tuple(_parts(value))


def _parts(name: str) -> list[str]:
    if not name.startswith("$"):
        return [name]
    return [found[1] if found[1] is not None else found[2] for found in _PART.finditer(name)]


def _follow(payload: object, path: list[str]) -> object:
    for part in path:
        match payload:
            case dict():
                payload = payload.get(part)
            case list() if part.isdecimal() and int(part) < len(payload):
                payload = payload[int(part)]
            case _:
                return None
    return payload
