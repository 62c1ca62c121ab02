"""`enqueue`: adds jobs to the queue, one from the command line or many from standard input.

Imports no handler. Standard input has one JSON document per line, and is read and enqueued as a
stream, in chunks: a file of any length takes the same memory. If a line is invalid, the lines
before it are enqueued, and that line and all after it are not.

A command without JSON means one job without parameters, unless standard input has data. A terminal,
/dev/null and a closed standard input (cron, systemd) have no data. An empty pipe or file is an
error: otherwise a job would be missing without notice. With `-` the user states that input is a list,
and a list may be empty.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers import Client, DuplicateJob, PayloadError
from jobherd.handlers._enqueue.bulk import chunks as chunks_of
from jobherd.handlers._enqueue.options import check_options
from jobherd.handlers._policy.names import check_kind
from jobherd.handlers._values.job_id import job_id
from jobherd.handlers._values.payload import decode_payload, max_payload
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, standard_input
from jobherd.supervisor.cli.console import complain
from jobherd.supervisor.cli.database import session
from jobherd.supervisor.cli.enqueue_options import add_arguments, job_options
from jobherd.supervisor.cli.kinds import suggest_kind
from jobherd.supervisor.cli.progress import Progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import BinaryIO, TextIO

CHUNK: Final = 1000
"""Jobs per transaction.

Larger transactions are not much faster, and would print IDs and progress in bursts.
"""
NOTHING: Final = (
    "no JSON was given, and standard input held no document: give the payload as an argument, '{}' for an empty "
    "one, or - if standard input may be empty"
)


def _enqueue(arguments: argparse.Namespace) -> int:
    options = job_options(arguments)
    if arguments.bytes_file is not None:
        if arguments.payload == "-":
            raise CommandError("--bytes-file is for one job, whose JSON is an argument: omit -", ExitCode.USAGE)
        options["payload_bytes"] = _bytes_of(arguments.bytes_file)
    elif arguments.payload == "-" or (arguments.payload is None and _is_given(sys.stdin)):
        return _many(arguments, options)
    payload = _read(arguments.payload if arguments.payload is not None else "{}")
    with session(arguments, may_create=True) as at:
        try:  # enqueue() would treat null as no payload
            chunks = chunks_of(check_kind(arguments.kind), [payload], check_options(**options))
            (number,) = Client(connection=at.connection, schema=at.schema).put(chunks)
        except (ValueError, TypeError) as problem:
            raise CommandError(_refused(problem), ExitCode.USAGE) from None
        except DuplicateJob as problem:
            raise CommandError(f"nothing is enqueued: {problem}") from None
        if sys.stderr.isatty():  # a script pays for each statement
            suggest_kind(at, arguments.kind)
    with _reported_on_stderr(f"job {number} is enqueued"):
        print(number, flush=True)
    if not job_id(number).new:
        complain(f"job {number} has the key; no new job is enqueued")
    return ExitCode.DONE


@contextmanager
def _reported_on_stderr(what: str) -> Iterator[None]:
    """If IDs cannot be written, report on standard error what was enqueued.

    A user who sees only a failure would enqueue everything a second time.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        complain(what)
        raise


def _bytes_of(name: str) -> bytes:
    # Longer content is rejected like any other, and an endless file is not read indefinitely.
    most = max_payload() + 1
    try:
        if name == "-":
            return standard_input().buffer.read(most)
        with open(name, "rb") as file:
            return file.read(most)
    except OSError as problem:
        raise CommandError(f"--bytes-file {name}: {problem.strerror}", ExitCode.USAGE) from None


def _is_given(stream: TextIO | None) -> bool:
    """Whether there is input: a file, a pipe or a socket.

    A terminal, /dev/null and a closed descriptor do not count.
    """
    try:
        return stream is not None and not stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _read(text: str | bytes) -> object:
    try:
        return decode_payload(text)
    except PayloadError as problem:
        raise CommandError(f"{problem}; write a JSON object, like '{{\"order_id\": 7}}'", ExitCode.USAGE) from None


def _refused(problem: ValueError | TypeError) -> str:
    """Return the error message of the enqueue call, with the field and what to do."""
    if isinstance(problem, PayloadError):
        problem.index = None  # people count lines, including empty ones
    return str(problem)


def _enqueued(done: int, which: str = "") -> str:
    return f"{done} job{which} is enqueued" if done == 1 else f"{done} jobs{which} are enqueued"


def _many(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    done = known = 0
    given = standard_input()
    progress = Progress(_length(given.fileno()))
    lines = _Lines(given.buffer)

    def tell(ids: list[int]) -> None:
        nonlocal done, known
        done += len(ids)
        known += sum(not job_id(number).new for number in ids)
        progress.hide()
        with _reported_on_stderr(f"{_enqueued(done)}, the last of them is {ids[-1]}"):
            sys.stdout.write("".join(f"{number}\n" for number in ids))
            sys.stdout.flush()  # the reader may act on the IDs before the end
        progress.show(done, lines.read)

    with session(arguments, may_create=True) as at:
        client = Client(connection=at.connection, schema=at.schema)
        try:
            client.enqueue_stream(arguments.kind, lines, on_chunk=tell, chunk=CHUNK, **options)
        except (ValueError, TypeError) as problem:
            if not lines.number:  # invalid options are not an error of the first line
                raise CommandError(str(problem), ExitCode.USAGE) from None
            message = (
                f"line {lines.number}: {_refused(problem)}; {_enqueued(done, ' before it')}, that line and the later "
                "ones are not"
            )
            raise CommandError(message, ExitCode.USAGE) from None
        except DuplicateJob as problem:
            raise CommandError(f"{problem}; {_enqueued(done)}, the others are not") from None
        finally:
            progress.end()
    if not done and arguments.payload is None:
        raise CommandError(NOTHING, ExitCode.USAGE)
    if not done:
        complain("standard input held no document; nothing was enqueued")
    if known:
        complain(f"{known} of {done} are not new: another job has the key")
    return ExitCode.DONE


def _length(fd: int) -> int:
    """Return how many bytes are left to read; 0 if that is unknown."""
    try:
        found = os.fstat(fd)
        return max(0, found.st_size - os.lseek(fd, 0, os.SEEK_CUR)) if stat.S_ISREG(found.st_mode) else 0
    except OSError:
        return 0


class _Lines:
    """The documents of a stream, one per line, without empty lines.

    Raises PayloadError for a bad line.
    """

    __slots__ = ("_stream", "number", "read")

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.number = 0
        """Number of the line that was read last."""
        self.read = 0
        """Bytes of the stream that were read."""

    def __iter__(self) -> Iterator[object]:
        # Spaces and escapes may lengthen a payload; a line without an end must not fill the memory.
        longest = 2 * max_payload() + 4096
        while line := self._stream.readline(longest):
            self.number += 1
            self.read += len(line)
            if len(line) >= longest:
                message = f"longer than {longest:,} bytes"
                raise PayloadError(message)
            if line.strip():
                yield decode_payload(line)


COMMANDS: Final = (
    Command(
        "enqueue",
        "enqueue a job",
        "  jobherd enqueue mail:receipt '{\"order_id\": 7}' --delay 10m\n"
        "  jq -c .[] orders.json | jobherd enqueue mail:receipt - > ids",
        add_arguments,
        _enqueue,
        about="Enqueue a job and print its id, alone on its line. With - , or without JSON and with standard input "
        "from a file\n"
        "or a pipe, one JSON document a line is read and an id a line printed; a bad line ends that with its number. "
        "Without JSON\n"
        "and with nothing to read (a terminal, /dev/null), the payload is {}.",
    ),
)  # fmt: skip
