"""deploy/Dockerfile and deploy/compose.yaml in real containers: `make containers`.

Needs root, and a machine that can start dockerd. Takes two minutes, and longer the first time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.containers import images
from tests.containers.checks import Checks, wait
from tests.containers.engine import Engine
from tests.support.herd import ROOT
from tests.support.ports import spare_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = "jobherdseen"
ENDED = ("completed", "failed", "cancelled", "expired")
ONE = "SELECT state, attempts, result, error, crashes FROM jobherd.jobs WHERE id = %s"


class Stack:
    """The services of deploy/compose.yaml. `ask` opens a session from outside the containers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.password = secrets.token_hex(8)
        self.http, self.port = spare_port(), spare_port()
        self.handlers = engine.folder / "handlers"
        self.handlers.mkdir()
        shutil.copy(Path(__file__).with_name("handlers.py"), self.handlers / "seen.py")
        override = engine.folder / "override.yaml"
        override.write_text(
            "services:\n"
            f"  database:\n    ports: ['127.0.0.1:{self.port}:5432']\n"
            f"  jobherd:\n    image: {images.PRODUCT}\n    volumes: ['{self.handlers}:/srv/jobherd/handlers.d:ro']\n"
        )
        os.chmod(engine.folder, 0o755)
        self._compose = ["docker-compose", "-p", PROJECT, "-f", ROOT / "deploy" / "compose.yaml", "-f", override]
        self.dsn = f"postgresql://jobs:{self.password}@127.0.0.1:{self.port}/jobs"

    def compose(self, *words: str) -> str:
        given = {"JOBS_PASSWORD": self.password, "PUBLISHED_PORT": str(self.http)}
        return self.engine.run([*self._compose, *words], env=given).stdout.strip()

    def ask(self, statement: str, *given: object) -> tuple[Any, ...]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(statement, given).fetchone() or ()

    def enqueue(self, kind: str, payload: str = "{}") -> int:
        return int(self.ask("SELECT jobherd.enqueue(%s, %s::jsonb)", kind, payload)[0])

    def state(self, job: int) -> str:
        return str(self.ask(ONE, job)[0])

    def running(self, job: int) -> None:
        wait(lambda: self.state(job) == "running", f"job {job} to run")

    def ended(self, job: int) -> tuple[Any, ...]:
        wait(lambda: self.state(job) in ENDED, f"job {job} to end")
        return self.ask(ONE, job)


@contextlib.contextmanager
def stack(engine: Engine) -> Iterator[Stack]:
    made = Stack(engine)
    try:
        yield made
    except BaseException:
        print(made.compose("logs", "--no-color", "--tail", "60"), file=sys.stderr)
        raise
    finally:
        made.compose("down", "--volumes", "--timeout", "20")


def main() -> int:
    checks = Checks("deploy/Dockerfile and deploy/compose.yaml in containers")
    with Engine() as engine:
        images.make_base(engine)
        images.make_database(engine)
        begun = time.monotonic()
        images.make_product(engine)
        added = int(engine.inspect(images.PRODUCT, "{{.Size}}")) - int(engine.inspect(images.BASE, "{{.Size}}"))
        checks.holds(
            "the Dockerfile builds", True, f"{time.monotonic() - begun:.0f} s, {added >> 20} MiB above its base"
        )
        with stack(engine) as made:
            supervisor = start(checks, made)
            reload(checks, made, supervisor)
            drain(checks, made, supervisor)
            kill(checks, made, supervisor)
            memory(checks, made)
            misfit(checks, made)
    return checks.end()


def start(checks: Checks, made: Stack) -> str:
    """Check that compose starts both services, and that the supervisor is process 1."""
    begun = time.monotonic()
    made.compose("up", "--detach", "--no-build")
    supervisor, database = (made.compose("ps", "--quiet", name) for name in ("jobherd", "database"))
    for container in (supervisor, database):
        wait(
            lambda which=container: made.engine.inspect(which, "{{.State.Health.Status}}") == "healthy",
            "a healthy container",
        )
    checks.holds("compose starts both services, and they are healthy", True, f"{time.monotonic() - begun:.0f} s")
    with urllib.request.urlopen(f"http://127.0.0.1:{made.http}/readyz", timeout=30) as answer:
        checks.holds("/readyz through the published port", answer.status == 200, answer.status)
    state, _, result, *_ = made.ended(made.enqueue("seen:parent"))
    checks.holds(
        "a job runs in a child of process 1, the supervisor", (state, result) == ("completed", 1), (state, result)
    )
    return supervisor


def reload(checks: Checks, made: Stack, supervisor: str) -> None:
    """Check that HUP loads new handlers and that a running job continues."""
    long = made.enqueue("seen:sleep", '{"seconds": 6}')
    made.running(long)
    file = made.handlers / "seen.py"
    file.write_text(file.read_text().replace("VERSION = 1", "VERSION = 2"))
    made.engine.docker("kill", "--signal", "HUP", supervisor)
    wait(lambda: made.ended(made.enqueue("seen:version"))[2] == 2, "the new handlers")
    state, attempts, *_ = made.ended(long)
    checks.holds(
        "HUP loads new handlers, and a running job continues", (state, attempts) == ("completed", 1), (state, attempts)
    )


def drain(checks: Checks, made: Stack, supervisor: str) -> None:
    """Check that `docker stop` waits for the running job."""
    job = made.enqueue("seen:sleep", '{"seconds": 6}')
    made.running(job)
    begun = time.monotonic()
    made.engine.docker("stop", "--time", "330", supervisor)
    took = time.monotonic() - begun
    state, attempts, *_ = made.ask(ONE, job)
    code = made.engine.inspect(supervisor, "{{.State.ExitCode}}")
    checks.holds(
        "docker stop drains: the job is completed, the exit code is 0",
        (state, attempts, code) == ("completed", 1, "0"),
        f"{state}, attempt {attempts}, exit {code}, {took:.1f} s for a 6-s job",
    )
    made.engine.docker("start", supervisor)


def kill(checks: Checks, made: Stack, supervisor: str) -> None:
    """Check that the job of a killed container runs again after the container has restarted."""
    job = made.enqueue("seen:sleep", '{"seconds": 4}')
    made.running(job)
    made.engine.docker("kill", supervisor)
    code = made.engine.inspect(supervisor, "{{.State.ExitCode}}")
    begun = time.monotonic()
    made.engine.docker("start", supervisor)
    state, attempts, _, _, crashes = made.ended(job)
    checks.holds(
        "docker kill and start: the job runs again",
        (state, code) == ("completed", "137"),
        f"exit {code}, then {state}, attempts {attempts}, crashes {crashes}, {time.monotonic() - begun:.1f} s for a 4-s job",
    )


def memory(checks: Checks, made: Stack) -> None:
    """Check that a job over the memory limit of a hardened container is killed and explained, and the supervisor lives."""
    made.compose("stop", "--timeout", "60", "jobherd")
    made.engine.docker(
        "run", "--detach", "--name", "tight", "--network", f"{PROJECT}_default",
        "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--memory", "256m",
        "--volume", f"{made.handlers}:/srv/jobherd/handlers.d:ro",
        "--env", f"JOBHERD_DSN=postgresql://jobs:{made.password}@database/jobs", "--env", "JOBHERD_WORKERS=2", images.PRODUCT,
    )  # fmt: skip
    try:
        state, *_ = made.ended(made.enqueue("seen:parent"))
        checks.holds("read-only, no capabilities, 256 MiB: a job runs", state == "completed", state)
        state, _, _, error, _ = made.ended(made.enqueue("seen:eat", '{"megabytes": 600}'))
        explained = "out-of-memory killer" in (error or "") and "256 MiB" in error
        checks.holds(
            "a job of 600 MiB is killed by the kernel, and the limit is named", state == "failed" and explained, error
        )
        after, *_ = made.ended(made.enqueue("seen:parent"))
        lives = made.engine.inspect("tight", "{{.State.Running}} {{.RestartCount}}")
        checks.holds(
            "the supervisor survives, the next job runs", (after, lives) == ("completed", "true 0"), (after, lives)
        )
    except BaseException:
        print(made.engine.docker("logs", "tight", check=False).stderr[-4000:], file=sys.stderr)
        raise
    finally:
        made.engine.docker("rm", "--force", "tight", check=False)


def misfit(checks: Checks, made: Stack) -> None:
    """Check that handlers that do not load cause exit code 78, which a restart does not fix."""
    broken = made.engine.folder / "broken"
    broken.mkdir()
    (broken / "broken.py").write_text("import nothing_of_that_name\n")
    found = made.engine.docker(
        "run", "--rm", "--network", f"{PROJECT}_default", "--volume", f"{broken}:/srv/jobherd/handlers.d:ro",
        "--env", f"JOBHERD_DSN=postgresql://jobs:{made.password}@database/jobs", images.PRODUCT,
        check=False,
    )  # fmt: skip
    named = "nothing_of_that_name" in found.stdout + found.stderr
    checks.holds(
        "handlers that do not load: exit 78, with the reason", (found.returncode, named) == (78, True), found.returncode
    )


if __name__ == "__main__":
    sys.exit(main())
