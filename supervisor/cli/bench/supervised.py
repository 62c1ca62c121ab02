"""Runs the supervisor that `bench` measures, and ends it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.bench.scratch import GLANCE, undisturbed
from jobherd.supervisor.cli.codes import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.supervisor.cli.database import Session
    from jobherd.supervisor.settings.definitions import Settings

QUEUE: Final = "bench"
START: Final = 60.0
"""Seconds within which the workers must become ready."""
LEAVE: Final = 30.0


@contextmanager
def run_supervisor(at: Session, dsn: str, settings: Settings, *, batch: int) -> Iterator[None]:
    """Run a supervisor on the scratch schema, with its workers ready.

    It does not receive the terminal's Ctrl-C: this process ends it.
    """
    # A folder without jobherd.toml: no settings file of the working directory applies.
    with tempfile.TemporaryDirectory(prefix="jobherd-bench-") as folder:
        said = Path(folder) / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBHERD_")}
        # Not as flags: the process list would show a password.
        environment |= {"JOBHERD_DSN": dsn, "JOBHERD_SCHEMA": at.schema}
        if settings.listen_dsn is not None:
            environment["JOBHERD_LISTEN_DSN"] = settings.listen_dsn
        words = [
            sys.executable,
            "-m",
            "jobherd.supervisor",
            "run",
            "--handlers",
            "jobherd.handlers.jobs_bench",
            "--queues",
            QUEUE,
            "--http",
            "off",
        ]
        words += [
            "--workers",
            str(settings.workers),
            "--claim-size",
            str(batch),
            "--poll",
            "5m",
            "--log-format",
            "text",
        ]
        with said.open("wb") as log:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_ready(at, process, settings.workers, said)
            yield
        finally:
            with undisturbed():
                _end(process)


def _wait_ready(at: Session, process: subprocess.Popen[bytes], workers: int, said: Path) -> None:
    until = time.monotonic() + START
    while sum(child["kind"] == "worker" for child in at.rows("observe/list_children")) < workers:
        if process.poll() is not None or time.monotonic() > until:
            last = said.read_text(errors="replace").strip().splitlines()[-3:]
            raise CommandError("the supervisor does not start: " + " / ".join(map(console.plain, last)), ExitCode.WRONG)
        time.sleep(GLANCE)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(LEAVE)
    except subprocess.TimeoutExpired:
        process.kill()  # its child processes notice that and exit
        process.wait()
