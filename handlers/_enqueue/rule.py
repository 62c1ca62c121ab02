"""Turns the options of a unique job into the rule that the database follows.

Must not read a payload: which fields count is part of the rule, and their values are the database's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy.unique import Unique

if TYPE_CHECKING:
    from jobherd.handlers._enqueue.options import Options

_WAITS: Final = 10.0
"""Longest delay of a debounced job, as a multiple of the debounce."""


def is_keyed(options: Options) -> bool:
    """Return whether an enqueue may change a job that waits."""
    return options.debounce is not None or options.edge == "trailing" or bool(options.unique and options.unique.changes)


def rule_of(options: Options) -> dict[str, Any]:
    """Return the rule, as `jobherd.enqueue_unique` and `jobherd.enqueue_keyed` take it."""
    unique = options.unique or Unique()
    rule: dict[str, Any] = {"during": unique.during, "conflict": unique.conflict, "queue": unique.queue}
    if is_keyed(options):
        rule["during"] = "waiting"
        rule["conflict"] = "collect" if unique.collect is not None else "replace"
        rule["keep"] = options.edge == "trailing"
        if unique.collect is not None:
            rule["collect"] = unique.collect
        if options.debounce is not None:
            rule["debounce"] = options.debounce
            rule["max_wait"] = _WAITS * options.debounce if options.max_wait is None else options.max_wait
    elif options.throttle is not None:
        rule["during"], rule["for"] = "never", options.throttle
    if options.unique_for is not None:
        rule["for"] = options.unique_for
    if options.unique_key is not None:
        rule["key"] = options.unique_key
    if options.partition is not None:
        rule["partition"] = options.partition
    return rule


def delay_of(options: Options) -> float | None:
    """Return the delay of a new job, in seconds."""
    if options.debounce is not None:
        return options.debounce
    return options.throttle if options.edge == "trailing" else options.delay


def fields_of(options: Options) -> tuple[list[str] | None, list[str] | None]:
    """Return names and paths of the fields that make the job unique, each path as an array's text.

    None: the whole payload, or a key instead.
    """
    if not options.unique or options.unique_key is not None or not options.unique.by:
        return None, None
    paths = options.unique.paths
    return list(paths), ["{" + ",".join(map(_quoted, path)) + "}" for path in paths.values()]


def check_rule(options: Options) -> None:
    """Raise ValueError if options of one job contradict each other."""
    if problem := _contradiction(options):
        raise ValueError(problem)


def _contradiction(options: Options) -> str | None:
    unique = options.unique
    if options.after is not None and options.is_unique:
        return "after excludes the options of unique jobs: give unique=False"
    if options.when is not None and options.after is None:
        return "when requires after, the jobs that must end first"
    times = (options.unique_key, options.unique_for, options.debounce, options.max_wait, options.throttle, options.edge)
    if unique is False:
        return None if times == (None,) * len(times) else "unique=False excludes the options of unique jobs"
    if unique and unique.during == "never" and options.unique_for is None and options.throttle is None:
        return "during='never' requires unique_for, the time for which a job holds its key"
    if options.throttle is not None and (options.debounce is not None or options.unique_for is not None):
        return "throttle excludes debounce and unique_for"
    if options.edge is not None and options.throttle is None:
        return "edge requires throttle"
    if options.max_wait is not None and (options.debounce is None or options.max_wait < options.debounce):
        return "max_wait requires debounce, and must not be shorter"
    if options.throttle is not None and options.edge != "trailing" and unique and unique.changes:
        return f"throttle with conflict={unique.conflict!r} requires edge='trailing'"
    if unique and unique.conflict == "collect" and not unique.by and options.unique_key is None:
        return "conflict='collect' requires by or unique_key, without the list"
    if not is_keyed(options):
        return None
    if unique and unique.conflict == "raise":
        return "debounce and edge='trailing' exclude conflict='raise'"
    if (options.debounce is not None or options.edge == "trailing") and (
        options.delay is not None or options.run_at is not None
    ):
        return "debounce and edge='trailing' exclude delay and run_at"
    if unique and unique.collect is not None and options.payload_bytes is not None:
        return "conflict='collect' excludes payload_bytes"
    return None


def _quoted(part: str) -> str:
    return '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
