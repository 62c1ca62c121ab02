"""`enqueue`: put jobs into the queue, one from the command line or many from standard input.

Imports no handler. From standard input, one JSON document a line is read, checked and sent in chunks, so that a file of any length
takes the same memory; what stands before a bad line is enqueued, nothing from it on.

A command without JSON means one job without parameters, unless something is there to be read. A terminal, /dev/null and a closed standard
input (cron, systemd) are nothing to read. A pipe or file that turns out to be empty is an error: a job that somebody meant to enqueue
would else be missing without a word. With `-` somebody says that it is a list, and a list may be empty.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from handlers import Client, PayloadError
from handlers._payload import decode_payload, max_payload
from supervisor.cli.codes import CommandError, ExitCode
from supervisor.cli.command import Command
from supervisor.cli.console import complain
from supervisor.cli.database import session
from supervisor.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, TextIO

CHUNK: Final = 1000
"""Jobs sent by one statement."""
CHUNK_BYTES: Final = 4_000_000
"""Or fewer, when their payloads are large."""
NOTHING: Final = (
    "no JSON was given, and standard input held no document: give the payload as an argument, '{}' for none "
    "(or - to take an empty list for one)"
)
OPTIONS: Final = ("queue", "priority", "delay", "run_at", "max_attempts", "timeout", "good_until")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help="the handler's name")
    parser.add_argument(
        "payload",
        metavar="JSON",
        nargs="?",
        help="the handler's parameters as a JSON object; - reads one a line from standard input (default: {}, or what is piped in)",
    )
    options = parser.add_argument_group("options of the job (default: what its handler declares)")
    options.add_argument("--queue", metavar="NAME", help="where it waits")
    options.add_argument("--priority", type=_whole, metavar="N", help="lower numbers first; may be negative")
    options.add_argument("--delay", metavar="TIME", help='not before so much time has passed, like "10m"')
    options.add_argument("--run-at", type=_moment, metavar="WHEN", help="not before this moment, like 2030-01-31T08:00:00+01:00")
    options.add_argument("--max-attempts", type=_whole, metavar="N", help="fail for good after so many attempts")
    options.add_argument("--timeout", metavar="TIME", help='for one attempt, like "2m"')
    options.add_argument("--good-until", type=_moment, metavar="WHEN", help="do not start it after this moment")


def _whole(text: str) -> int:
    try:
        return int(text[:12])
    except ValueError:
        message = f"{text[:40]!r} is not a whole number"
        raise argparse.ArgumentTypeError(message) from None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text[:40]!r} is not a moment: write it like 2030-01-31T08:00:00+01:00"
        raise argparse.ArgumentTypeError(message) from None
    return moment if moment.tzinfo is not None else moment.astimezone()  # people who name no zone mean their own


def _enqueue(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    if arguments.payload == "-" or (arguments.payload is None and _is_given(sys.stdin)):
        return _many(arguments, options)
    payload = _read(arguments.payload if arguments.payload is not None else "{}")
    with session(arguments, may_create=True) as at:
        print(_send(Client(connection=at.connection, schema=at.schema), arguments.kind, [payload], options)[0])
    return ExitCode.DONE


def _is_given(stream: TextIO | None) -> bool:
    """Whether somebody gave it to be read: a file, a pipe, a socket. Not a terminal, /dev/null, or a descriptor that is closed."""
    try:
        return stream is not None and not stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _read(text: str | bytes) -> object:
    try:
        return decode_payload(text)
    except PayloadError as problem:
        raise CommandError(f"{problem}; write a JSON object, like '{{\"order_id\": 7}}'", ExitCode.USAGE) from None


def _send(client: Client, kind: str, payloads: list[object], options: dict[str, Any]) -> list[int]:
    try:
        return client.enqueue_many(kind, payloads, **options)
    except (ValueError, TypeError) as problem:  # what the door refuses, with the field and the remedy
        raise CommandError(str(problem), ExitCode.USAGE) from None


def _many(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    done = 0
    if sys.stdin is None:  # somebody started us with it closed
        raise CommandError("standard input is closed: there is nothing to read", ExitCode.USAGE)
    progress = Progress(_length(sys.stdin.fileno()))
    with session(arguments, may_create=True) as at:
        client = Client(connection=at.connection, schema=at.schema)
        _send(client, arguments.kind, [], options)  # bad options are no fault of the first line
        try:
            for chunk in _chunks(sys.stdin.buffer):
                ids = _send(client, arguments.kind, chunk.payloads, options)
                done += len(ids)
                progress.hide()
                sys.stdout.write("".join(f"{number}\n" for number in ids))
                sys.stdout.flush()  # whoever reads them may act on them before the end
                progress.show(done, chunk.read)
                if chunk.problem is not None:
                    raise CommandError(chunk.problem, ExitCode.USAGE)
        except CommandError as problem:
            raise CommandError(f"{problem}; {done} jobs before it are enqueued, nothing from it on", problem.code) from None
        finally:
            progress.end()
    if not done and arguments.payload is None:
        raise CommandError(NOTHING, ExitCode.USAGE)
    if not done:
        complain("standard input held no document; nothing was enqueued")
    return ExitCode.DONE


def _length(fd: int) -> int:
    """Return how many bytes are still to be read, 0 if nobody can say."""
    try:
        found = os.fstat(fd)
        return max(0, found.st_size - os.lseek(fd, 0, os.SEEK_CUR)) if stat.S_ISREG(found.st_mode) else 0
    except OSError:
        return 0


class _Chunk:
    """Some documents that have passed the door, and what is wrong with the line after them, if something is."""

    __slots__ = ("payloads", "problem", "read", "size")

    def __init__(self, read: int = 0) -> None:
        self.payloads: list[object] = []
        self.problem: str | None = None
        self.size = 0
        self.read = read
        """Bytes of the stream up to here, those of the chunks before included."""


def _chunks(stream: BinaryIO) -> Iterator[_Chunk]:
    """Read documents, one a line; empty lines are passed over. The chunk with a bad line is the last."""
    from handlers import check_payload  # noqa: PLC0415  # only many jobs are checked one by one

    longest = 2 * max_payload() + 4096  # a payload may be written with spaces and escapes; a line without an end must not fill the memory
    chunk, number = _Chunk(), 0
    while line := stream.readline(longest):
        number += 1
        chunk.read += len(line)
        if len(line) < longest and not line.strip():
            continue
        try:
            if len(line) >= longest:
                message = f"longer than {longest:,} bytes"
                raise PayloadError(message)
            payload = decode_payload(line)
            check_payload(payload)
        except (PayloadError, TypeError) as problem:
            chunk.problem = f"line {number}: {problem}"
            break
        chunk.payloads.append(payload)
        chunk.size += len(line)
        if len(chunk.payloads) >= CHUNK or chunk.size >= CHUNK_BYTES:
            yield chunk
            chunk = _Chunk(chunk.read)
    if chunk.payloads or chunk.problem is not None:
        yield chunk


COMMANDS: Final = (
    Command(
        "enqueue",
        "put a job into the queue",
        "  jobherd enqueue mail:receipt '{\"order_id\": 7}' --delay 10m\n"
        "  jq -c .[] orders.json | jobherd enqueue mail:receipt - > ids",
        _arguments,
        _enqueue,
        about="Put a job into the queue and print its id, alone on its line. With - , or without JSON and with standard input from a file\n"
        "or a pipe, one JSON document a line is read and an id a line printed; a bad line ends that with its number. Without JSON\n"
        "and with nothing to read (a terminal, /dev/null), the payload is {}.",
    ),
)  # fmt: skip
