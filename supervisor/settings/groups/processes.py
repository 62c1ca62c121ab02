"""Settings about how child processes start, restart and stop."""

from __future__ import annotations

from dataclasses import dataclass

from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.field import setting


@dataclass(frozen=True)
class ProcessSettings:
    """Settings about how child processes start, restart and stop."""

    workers: int = setting(
        4,
        values.whole(0, 64),
        "Number of workers. The signals TTIN and TTOU add and remove one.",
        group="Child processes",
        metavar="N",
    )
    max_workers: int = setting(
        64,
        values.whole(1, 64),
        "The most workers that TTIN can add up to. The supervisor reserves shared memory for this number.",
        group="Child processes", metavar="N", for_good=True,
    )  # fmt: skip
    spawn_timeout: float = setting(
        10.0,
        values.span(0.5, 600),
        "Time a new child process has to become ready before it is killed and restarted. Also applies to a process "
        "that is stopped by a signal (SIGSTOP) while it runs no job.",
        group="Child processes", metavar="TIME",
    )  # fmt: skip
    respawn_initial: float = setting(
        0.1,
        values.span(0.01, 60),
        "Time to wait before a crashed child process is restarted. It doubles with each crash in a row, with jitter.",
        group="Child processes", metavar="TIME",
    )  # fmt: skip
    respawn_max: float = setting(
        30.0,
        values.span(0.1, 3600),
        "Longest time to wait before a crashed child process is restarted.",
        group="Child processes",
        metavar="TIME",
    )
    max_jobs: int = setting(
        0,
        values.whole(1, 1_000_000_000, zero="never"),
        "Replace a worker after this number of jobs.",
        group="Child processes", metavar="N", says="0: never",
    )  # fmt: skip
    max_age: float = setting(
        0.0,
        values.span(1, 30 * 86400, zero="never"),
        "Replace a worker that is this old, between two jobs.",
        group="Child processes", metavar="TIME", says="0: never",
    )  # fmt: skip
    max_rss: int = setting(
        0,
        values.size(32_000_000, 10**13, zero="never"),
        "Replace a worker that uses more memory than this. Jobherd also checks while a job runs, and lets that job "
        "end first.",
        group="Child processes", metavar="SIZE", says="0: never",
    )  # fmt: skip
    jitter: float = setting(
        0.1,
        values.fraction(0, 0.5),
        "Share by which the three limits above vary from worker to worker, so that not all are replaced at the same "
        "time.",
        group="Child processes", metavar="SHARE",
    )  # fmt: skip

    grace: float = setting(
        5.0,
        values.span(0.1, 300),
        "Time between the steps of the stop sequence for a job past its timeout: an exception in the handler, then "
        "SIGTERM, then SIGKILL.",
        group="Shutdown", metavar="TIME",
    )  # fmt: skip
    drain_timeout: float = setting(
        300.0,
        values.span(0, 86400),
        "Time that running jobs may continue after TERM or Ctrl-C. Interrupted jobs return to the queue; the attempt "
        "is not counted.",
        group="Shutdown", metavar="TIME",
    )  # fmt: skip
