"""Makes any text and any exception safe to store.

If a failure cannot be stored, its job is stuck. PostgreSQL rejects NUL characters, psycopg rejects
lone surrogates, and an exception's own `__str__` may raise, lie about its type, or return a
gigabyte. So nothing here raises, whatever it gets, and the size of the result is bounded. It
catches BaseException, including interruptions of the job: the caller has already decided the job's
outcome, and an alarm in the middle ends only the description.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

MESSAGE_BYTES: Final = 10_000
TRACEBACK_BYTES: Final = 64_000

_HOSTILE: Final = re.compile("[\0\ud800-\udfff]")
_CUT: Final = " [cut]"
_FRAMES = 30  # shown of one traceback: the innermost
_LINKS = 100_000  # followed in a chain of causes
_OUTER, _INNER = 8, 4  # shown of a chain: what ended the job, and what started it
_MEMBERS, _LEVELS = 10, 4  # shown of an exception group
_NOTES = 10
_ROOT: Final = str(Path(__file__).parents[2])
_OURS: Final = tuple(f"{_ROOT}/{place}" for place in ("workers/", "handlers/_"))
"""Code between the worker's loop and the handler. Tracebacks leave it out."""
_INTERRUPT: Final = f"{_ROOT}/workers/process/interrupt.py"
"""Code that interrupts the handler. A traceback ends before it, at the handler's line."""
_loaded_at = float("inf")


def loading(at: float) -> None:
    """Record when the handlers of this process are loaded.

    A file that changes later is not what this process runs, and a traceback through it says so.

    at: the time, as `time.time()` returns it.
    """
    global _loaded_at
    _loaded_at = at


def sanitize(text: object, limit: int = MESSAGE_BYTES) -> str:
    r"""Return `text` without NUL and lone surrogates (each becomes U+FFFD). Never raises.

    The result has at most `limit` bytes in UTF-8.

    text: a str; anything else is converted with `str()`.
    limit: longest result in bytes, default 10,000; a longer text is cut and marked as cut.

    >>> sanitize("a\0b", 100)
    'a�b'
    """
    try:
        limit = max(0, limit)
        # A slice of the exact type: a subclass may do anything. Of a gigabyte only the head is
        # read.
        plain = str.__getitem__(text if isinstance(text, str) else str(text), slice(0, limit + 1))
        return _cap(_HOSTILE.sub("\ufffd", plain), limit)
    except BaseException:  # see the module's docstring
        return _cap("<text that cannot be shown>", limit)


def describe_exception(
    exception: BaseException, *, message_bytes: int = MESSAGE_BYTES, traceback_bytes: int = TRACEBACK_BYTES
) -> tuple[str, str]:
    """Return (message, traceback) of `exception`, both safe to store. Never raises.

    The message is "ValueError: its text". The traceback begins with the first frame outside
    Jobherd. It shows the innermost 30 frames of each exception, the outer eight and inner four
    exceptions of a chain of causes, and ten members of a group, four levels deep.

    >>> describe_exception(ValueError("no such order"))[0]
    'ValueError: no such order'
    """
    try:
        message = _headline(exception, message_bytes)
    except BaseException:
        message = "an exception that cannot be shown"
    lines: list[str] = []
    try:
        _write(exception, lines, indent="", level=0)
    except BaseException:
        lines.append("(the traceback could not be read further)")
    try:
        return message, _squeeze("\n".join(lines), traceback_bytes)
    except BaseException:
        return message, ""


def _headline(exception: BaseException, limit: int) -> str:
    name = _type_name(exception)
    try:
        text = str(exception)
    except BaseException as problem:
        return sanitize(f"{name}: <its text cannot be shown: __str__ raised {_type_name(problem)}>", limit)
    text = sanitize(text, limit)
    return sanitize(f"{name}: {text}" if text else name, limit)


def class_path(value: object) -> str:
    """Return module and name of an object's class, safe to store, at most 200 bytes. Never raises.

    >>> class_path(ValueError())
    'builtins.ValueError'
    """
    kind = type(value)
    try:  # type's own slots, as in `_type_name`
        return sanitize(
            f"{type.__dict__['__module__'].__get__(kind)}.{type.__dict__['__qualname__'].__get__(kind)}", 200
        )
    except BaseException:
        return "builtins.BaseException"


def _type_name(value: object) -> str:
    kind = type(value)
    try:
        # type's own slots: a metaclass may define names that raise.
        name = type.__dict__["__qualname__"].__get__(kind)
        module = type.__dict__["__module__"].__get__(kind)
        return sanitize(name if module in {"builtins", "__main__"} else f"{module}.{name}", 200)
    except BaseException:
        return "exception"


def _write(exception: BaseException, lines: list[str], *, indent: str, level: int) -> None:
    """Append a chain of exceptions to the lines, the oldest first as Python does."""
    chain = _chain(exception)
    hidden = max(0, len(chain) - _OUTER - _INNER)
    shown = list(enumerate(chain))
    for place, (link, relation) in reversed(shown[:_OUTER] + shown[_OUTER + hidden :]):
        _tell_one(link, lines, indent=indent, level=level)
        if hidden and place == _OUTER + hidden:
            lines.append(f"{indent}\n{indent}({hidden:,} exceptions of the chain are not shown)\n{indent}")
        elif relation:
            lines.append(f"{indent}\n{indent}{relation}\n{indent}")


def _chain(exception: BaseException) -> list[tuple[BaseException, str]]:
    """Return the exception and its causes, outermost first, each with its relation to the last."""
    cause_of = BaseException.__dict__["__cause__"].__get__
    context_of = BaseException.__dict__["__context__"].__get__
    hidden_of = BaseException.__dict__["__suppress_context__"].__get__
    found: list[tuple[BaseException, str]] = [(exception, "")]
    seen = {id(exception)}
    link = exception
    for _ in range(_LINKS):
        behind, relation = cause_of(link), "The above exception was the direct cause of the following exception:"
        if behind is None and not hidden_of(link):
            behind, relation = context_of(link), "During handling of the above exception, another exception occurred:"
        if behind is None or id(behind) in seen:
            break
        seen.add(id(behind))
        found.append((behind, relation))
        link = behind
    return found


def _tell_one(exception: BaseException, lines: list[str], *, indent: str, level: int) -> None:
    frames, left_out, changed = _frames(BaseException.__dict__["__traceback__"].__get__(exception))
    if frames:
        lines.append(f"{indent}Traceback (most recent call last):")
        if left_out:
            lines.append(f"{indent}  ({left_out:,} frames are not shown)")
        lines.extend(indent + line for line in frames)
    lines.append(indent + _headline(exception, 2000).replace("\n", "\n" + indent))
    if changed:
        lines.append(
            f"{indent}({changed} was changed after this process had loaded it: reload the workers to run the new code)"
        )
    notes = getattr(exception, "__notes__", None)
    if isinstance(notes, list):
        lines.extend(indent + sanitize(note, 1000).replace("\n", "\n" + indent) for note in notes[:_NOTES])
    if isinstance(exception, BaseExceptionGroup) and level < _LEVELS:
        members = BaseExceptionGroup.__dict__["exceptions"].__get__(exception)
        for number, member in enumerate(members[:_MEMBERS], 1):
            lines.append(f"{indent}  +-- {number} of {len(members)}")
            _write(member, lines, indent=f"{indent}  | ", level=level + 1)
        if len(members) > _MEMBERS:
            lines.append(f"{indent}  +-- {len(members) - _MEMBERS:,} more are not shown")


def _frames(traceback: TracebackType | None) -> tuple[list[str], int, str]:
    """Return the lines of the innermost frames, and the number of frames left out.

    The third value is a file that changed since it was loaded, or "".
    """
    last: deque[TracebackType] = deque(maxlen=_FRAMES)
    total = 0
    changed = ""
    outermost = traceback
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OURS):
        traceback = traceback.tb_next
    traceback = traceback or outermost  # the whole traceback is inside Jobherd
    while traceback is not None and not (last and traceback.tb_frame.f_code.co_filename == _INTERRUPT):
        last.append(traceback)
        total += 1
        traceback = traceback.tb_next
    lines: list[str] = []
    for entry in last:
        code = entry.tb_frame.f_code
        lines.append(
            f'  File "{sanitize(code.co_filename, 500)}", line {entry.tb_lineno}, in {sanitize(code.co_name, 200)}'
        )
        source = sanitize(linecache.getline(code.co_filename, entry.tb_lineno, entry.tb_frame.f_globals).strip(), 300)
        if source:
            lines.append(f"    {source}")
        changed = sanitize(code.co_filename, 500) if _is_changed(code.co_filename) else changed
    return lines, total - len(last), changed


def _is_changed(file: str) -> bool:
    try:
        return os.stat(file).st_mtime > _loaded_at
    except (OSError, ValueError):
        return False


def _cap(text: str, limit: int) -> str:
    data = text.encode()
    if len(data) <= limit:
        return text
    return (data[: max(0, limit - len(_CUT))].decode("utf-8", "ignore") + _CUT)[:limit]


def _squeeze(text: str, limit: int) -> str:
    """Return at most `limit` bytes of a traceback, cut in the middle.

    The exception that ended the job is at its end.
    """
    data = _HOSTILE.sub("\ufffd", text).encode()
    if len(data) <= limit:
        return data.decode()
    middle = b"\n(cut)\n"
    head = max(0, limit // 4 - len(middle))
    tail = max(0, limit - head - len(middle))
    return (
        data[:head].decode("utf-8", "ignore") + middle.decode() + data[len(data) - tail :].decode("utf-8", "ignore")
    )[:limit]
