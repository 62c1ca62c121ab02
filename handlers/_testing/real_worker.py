"""Runs committed jobs with real processes: a supervisor with one worker, for integration tests.

The processes are gone when the block ends, whatever the test did. The server ends their sessions then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Self

from jobherd.handlers._enqueue.dsn import find_dsn
from jobherd.handlers._policy.durations import Duration, positive

if TYPE_CHECKING:
    from types import TracebackType

_PATIENCE = 60.0
"""Seconds in which a drained supervisor must exit."""


class RealWorker:
    """A supervisor with one worker, as `jobherd run` starts it.

    Modules are found as in this process: the supervisor gets its import path.

    Args:
        dsn: address of the database. Default: as for `Client`.

    Example:
        >>> with RealWorker() as worker:  # doctest: +SKIP
        ...     receipt.enqueue(order_id=7)
        ...     worker.drain("my_handlers")
    """

    def __init__(self, dsn: str | None = None) -> None:
        self._dsn = dsn
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__

    def drain(self, *handlers: str, timeout: Duration = 60.0) -> str:
        """Run all jobs to their end, retries too, and return the log.

        Args:
            handlers: folders, files or modules, as of `jobherd run --handlers`.
            timeout: longest wait, a duration, default 60 s.

        Raises:
            AssertionError: the jobs are not finished in time, or the supervisor failed. The message
                has the log.
        """
        self.start(*handlers, settings={"until_empty": "true", "ignore_failures": "true"})
        assert self._process is not None
        try:
            code: int | None = self._process.wait(positive(timeout, field="timeout"))
        except subprocess.TimeoutExpired:
            code = None
        self.stop()
        if code != 0:
            message = f"jobs are left after {timeout}" if code is None else f"the supervisor exited with {code}"
            raise AssertionError(f"{message}\n{self.log()}")
        return self.log()

    def start(self, *handlers: str, settings: dict[str, str] | None = None) -> None:
        """Start a supervisor that runs jobs until `stop`, or until the block ends.

        Args:
            handlers: as of `drain`.
            settings: other settings by name, such as `{"workers": "2"}`.
        """
        self.stop()
        given = {"workers": "1", "dashboard": "false", "http": "", "spawn_timeout": "60s", "dsn": find_dsn(self._dsn)}
        given |= settings or {}
        given["handlers"] = ",".join(handlers)
        environment = os.environ | {f"JOBHERD_{name.upper()}": value for name, value in given.items()}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-P", "-m", "jobherd.supervisor", "run"]
        self._process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)

    def stop(self) -> None:
        """Drain the supervisor, if one runs, and wait until its processes are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()  # its workers notice, and exit
            process.wait()

    def log(self) -> str:
        """Return what the processes have logged."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._log.close()
