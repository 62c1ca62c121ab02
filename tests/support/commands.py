"""Runs many console commands without starting a Python interpreter for each.

A server process imports the command line once. For each command it forks a child, which gets the
arguments, environment, working directory and streams of the command and ends as a program does. So
each command is still a separate process, but costs a fork instead of half a second of imports.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HERE: Final = (sys.executable, "-W", "error", "-m", "tests.support.commands")
_SIZE: Final = 1 << 20
"""Bytes of a request: the environment is the longest part."""


class Commands:
    """The client of one server process, which starts with the first command."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def run(
        self, words: Sequence[str], given: bytes, environment: dict[str, str], cwd: Path | None, timeout: float
    ) -> subprocess.CompletedProcess[bytes] | None:
        """Run a command to its end. Return None if another command is running: the server runs one at a time."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._run(words, given, environment, cwd, timeout)
        finally:
            self._lock.release()

    def _run(
        self, words: Sequence[str], given: bytes, environment: dict[str, str], cwd: Path | None, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        server = self._socket = self._socket or self._start()
        pipes = [os.pipe() for _ in range(3)]
        (stdin, feed), (out, stdout), (err, stderr) = pipes
        request = {"words": list(words), "environment": environment, "cwd": os.fspath(cwd or os.getcwd())}
        try:
            socket.send_fds(server, [json.dumps(request).encode()], [stdin, stdout, stderr])
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        read: dict[int, bytes] = {}
        threads = [threading.Thread(target=_read, args=(fd, read)) for fd in (out, err)]
        threads.append(threading.Thread(target=_feed, args=(feed, given)))
        for thread in threads:
            thread.start()
        pid = json.loads(server.recv(_SIZE))
        server.settimeout(timeout)
        try:
            code = json.loads(server.recv(_SIZE))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            server.settimeout(None)
            server.recv(_SIZE)
            raise subprocess.TimeoutExpired(list(words), timeout) from None
        finally:
            server.settimeout(None)
            for thread in threads:
                thread.join()
        return subprocess.CompletedProcess(list(words), code, read[out], read[err])

    @staticmethod
    def _start() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SIZE)
            process = subprocess.Popen(
                [*HERE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # Pipes, as in a command that a test starts: Python treats files, but not pipes, as seekable.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        atexit.register(_end, ours, process)
        return ours


def _end(server: socket.socket, process: subprocess.Popen[bytes]) -> None:
    server.close()
    process.communicate()


def _read(fd: int, read: dict[int, bytes]) -> None:
    with os.fdopen(fd, "rb") as stream:
        read[fd] = stream.read()


def _feed(fd: int, given: bytes) -> None:
    try:
        with os.fdopen(fd, "wb", buffering=0) as stream:
            stream.write(given)
    except BrokenPipeError:
        pass  # the command has ended without reading it


def serve(client: socket.socket) -> dict[str, object]:
    """Fork a child for each request. Return in a child, with its request."""
    while True:
        data, fds, _, _ = socket.recv_fds(client, _SIZE, 3)
        if not data:
            client.close()
            sys.exit()
        pid = os.fork()
        if pid == 0:
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            client.close()
            request: dict[str, object] = json.loads(data)
            return request
        for fd in fds:
            os.close(fd)
        client.send(json.dumps(pid).encode())
        client.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def main() -> int:
    """Import the command line, then serve; in a child, run its command."""
    from jobherd.supervisor import __main__ as console  # noqa: PLC0415 - only the server needs them
    from jobherd.supervisor import cli

    for module in pkgutil.iter_modules(cli.__path__, f"{cli.__name__}."):
        importlib.import_module(module.name)
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    environment, words, cwd = request["environment"], request["words"], request["cwd"]
    assert isinstance(environment, dict)
    assert isinstance(words, list)
    assert isinstance(cwd, str)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[0] = cwd  # as `python -m` sets it
    sys.argv = [console.__file__, *words]
    return console.main()


if __name__ == "__main__":
    sys.exit(main())
