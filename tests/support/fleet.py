"""Runs real supervisors in a test and waits for events in their database and log, without sleeping.
with Stage(database, tmp_path) as stage:
        fleet = stage.run_fleet(workers=2)                 # a supervisor with its children, in a separate session
        job = stage.enqueue("t:gate", '{"label": "a"}')
        arrival = gate.wait_arrival("a")
        fleet.signal(signal.SIGTERM)
        arrival.open()
        stage.wait_state(job, "completed")
        assert fleet.wait_exit() == 0

Triggers, only in the test database, record each move of a job in the table `t_trans` and notify the
test. `Stage.wait` checks its condition after each such move, after each log line, when a supervisor
ends, and twice a second. The processes of a fleet share its standard error, a pipe: when the pipe
ends, no process of the fleet is left.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg

from tests.support.checkout import import_path
from tests.support.patience import GLANCE, LIMIT
from tests.support.processes import is_running
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
PYTHON = (sys.executable, "-W", "error", "-m")
STOCK = ROOT / "tests" / "system" / "jobs.py"
"""The handlers that most tests use."""
WIDE = 1024 * 1024

AUDIT = """
CREATE TABLE t_trans (
    n bigserial PRIMARY KEY, job bigint, place text, op text, state text, token bigint, child bigint,
    app text DEFAULT current_setting('application_name'), at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION t_note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    row_ jsonb := to_jsonb(CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END);
    -- The trigger of a partition stores the name of the partitioned table.
    place_ text := regexp_replace(TG_TABLE_NAME, '_([0-9]{8}|default)$', '');
BEGIN
    INSERT INTO public.t_trans (job, place, op, state, token, child)
    SELECT coalesce(j.id, (row_ ->> 'id')::bigint, (row_ ->> 'job')::bigint), place_, TG_OP,
           coalesce(row_ ->> 'state', row_ ->> 'outcome', place_), (row_ ->> 'token')::bigint, (row_ ->> 'child')::bigint
      FROM (SELECT) AS one LEFT JOIN jsonb_to_recordset(row_ -> 'jobs') AS j (id bigint) ON true;
    PERFORM pg_notify('test_events', '');
    RETURN NULL;
END $$;
CREATE FUNCTION t_tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('test_events', ''); RETURN NULL; END $$;
DO $$ DECLARE place text; BEGIN
    FOREACH place IN ARRAY '{ready,scheduled,running,history,attempts}'::text[] LOOP
        EXECUTE format('CREATE TRIGGER t_note AFTER INSERT OR UPDATE OR DELETE ON jobherd.%I FOR EACH ROW EXECUTE FUNCTION t_note()', place);
    END LOOP;
    FOREACH place IN ARRAY '{supervisors,children}'::text[] LOOP
        EXECUTE format('CREATE TRIGGER t_tell AFTER INSERT OR UPDATE OR DELETE ON jobherd.%I FOR EACH STATEMENT EXECUTE FUNCTION t_tell()', place);
    END LOOP;
END $$;
"""


class Fleet:
    """One supervisor with its child processes. Created by `Stage.start` and `Stage.run_fleet`."""

    def __init__(self, stage: Stage, *command: str, environment: Mapping[str, str], cwd: Path) -> None:
        self.stage = stage
        self.log: list[dict[str, Any]] = []
        """The log lines so far. A line that is not JSON is stored as `raw`."""
        self.code: int | None = None
        """The exit code, once a wait has seen it."""
        self.ended = False
        """No process of the fleet is left: its standard error has ended."""
        self._rest = b""
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, WIDE)  # large, because the test reads it only while it waits
        self.fd = read
        self._inode = os.fstat(read).st_ino
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
        os.close(write)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)

    # -- the log

    def drain(self) -> None:
        """Read new log lines without blocking."""
        while not self.ended:
            try:
                data = os.read(self.fd, WIDE)
            except BlockingIOError:
                return
            if not data:
                self.ended = True
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.log += [_event(line) for line in lines if line.strip()]

    def said(self, wanted: str | Callable[[dict[str, Any]], bool], *, after: int = 0) -> list[dict[str, Any]]:
        """Return the lines whose message contains a text, or that a function accepts; `after`: lines to skip."""
        self.drain()
        takes = (
            (lambda event: wanted in event.get("message", event.get("raw", ""))) if isinstance(wanted, str) else wanted
        )
        return [event for event in self.log[after:] if takes(event)]

    def wait_log(
        self, wanted: str | Callable[[dict[str, Any]], bool], *, count: int = 1, after: int = 0, limit: float = LIMIT
    ) -> dict[str, Any]:
        """Wait until `wanted` was logged `count` times; return the last of these lines."""

        def found() -> dict[str, Any] | None:
            lines = self.said(wanted, after=after)
            return lines[count - 1] if len(lines) >= count else None

        return self.stage.wait(found, f"the log line {wanted!r}", limit=limit)

    def wait_ready(self, count: int, *, after: int = 0, limit: float = LIMIT) -> None:
        """Wait until `count` workers have logged that they are ready."""
        self.wait_log(is_ready, count=count, after=after, limit=limit)

    # -- processes

    def workers(self) -> dict[int, int]:
        """Return the pids of living workers by slot, from the log."""
        seen = {int(event["message"].split()[1]): int(event["pid"]) for event in self.said(is_ready)}
        return {slot: pid for slot, pid in seen.items() if is_running(pid)}

    def maintenance(self) -> int:
        """Return the pid of the maintenance process."""
        return int(
            self.said(
                lambda event: (
                    event.get("message", "").startswith("maintenance ") and event["message"].endswith("is ready")
                )
            )[-1]["pid"]
        )

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes of the fleet by pid, even in other sessions.

        A process belongs to the fleet if its standard output or error is the fleet's pipe.
        """
        return {pid: _command(pid) for pid in _pids() if self._is_ours(pid)}

    def _is_ours(self, pid: int) -> bool:
        for name in ("1", "2"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") == f"pipe:[{self._inode}]" and pid != os.getpid():
                    return is_running(pid)
        return False

    # -- signals and the end

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        self._process.send_signal(signum)

    def wait_exit(self, limit: float = LIMIT) -> int:
        """Wait until the supervisor has ended; return its exit code (negative: the signal)."""
        self.stage.wait(self.note_exit, f"the end of supervisor {self.pid}", limit=limit)
        assert self.code is not None
        return self.code

    def note_exit(self) -> bool:
        """Return whether the supervisor has ended, and store its exit code."""
        self.drain()
        if self.code is None:
            self.code = self._process.poll()
        return self.code is not None

    def wait_gone(self, limit: float = LIMIT) -> None:
        """Wait until no process of the fleet is left, including grandchildren and daemons."""

        def gone() -> bool:
            self.drain()
            return self.ended

        self.stage.wait(gone, lambda: f"the end of every process of it; there are {self.processes()}", limit=limit)

    def stop(self) -> int:
        """Drain the supervisor; return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_exit()

    def close(self) -> None:
        """Kill all processes of the fleet that are left."""
        until = time.monotonic() + LIMIT
        while left := self.processes():
            assert time.monotonic() < until, f"processes survive SIGKILL: {left}"
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LIMIT)
        self.drain()
        os.close(self.fd)
        os.close(self.pidfd)
        self.ended = True

    def text(self) -> str:
        """Return the last 80 lines of the log, for a failed test."""
        self.drain()
        return "\n".join(_shown(event) for event in self.log[-80:])


class Stage(Queue):
    """The database and the supervisors of a test. `audit`: create the triggers that record each move of a job."""

    def __init__(
        self, dsn: str, folder: Path, *, environment: Mapping[str, str] | None = None, audit: bool = True
    ) -> None:
        super().__init__(dsn)
        self.folder = folder
        self.fleets: list[Fleet] = []
        self._environment = dict(environment or {})
        if audit:
            self.run(AUDIT)
        self._listen()

    def _listen(self) -> None:
        self._ears = psycopg.connect(self.dsn, autocommit=True, application_name="test ears")
        self._ears.execute("LISTEN test_events")
        self.run("SET jit = off")  # compiling the view of all jobs would take a third of a second for each query

    def reconnect(self) -> None:
        """Connect again after the database was down."""
        self._ears.close()
        for connection in self.opened:
            connection.close()
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.opened = [self.connection]
        self._listen()

    # -- supervisors

    def start(
        self,
        *words: str,
        handlers: str | Path = STOCK,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        within: Sequence[str] = (),
        patience: int | None = None,
        command: str = "run",
        **settings: object,
    ) -> Fleet:
        """Start a supervisor and return at once.

        Args:
            words: more words of the command line.
            handlers: the handlers.
            environment: more environment variables.
            cwd: the working directory; default: the test's folder.
            within: command that starts the supervisor, such as a namespace tool.
            patience: seconds to wait for a database server instead of 10, see tests/support/hasty.py.
            command: `run`, or another command of `jobherd`.
            settings: as in supervisor/settings/groups/. A setting that is None is not passed.
        """
        given = {
            "dsn": self.dsn,
            "handlers": handlers,
            "workers": 2,
            "http": "off",
            "log_format": "json",
            "spawn_timeout": LIMIT,
            **settings,
        }
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("JOBHERD_") or name == "JOBHERD_TEST_GATE"
        }
        kept.pop("DATABASE_URL", None)
        kept |= {"PYTHONPATH": import_path(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        kept |= {f"JOBHERD_{name.upper()}": str(value) for name, value in given.items() if value is not None}
        module = ("supervisor",) if patience is None else ("tests.support.hasty", str(patience))
        line = (*within, *PYTHON, *module, command, *words)
        fleet = Fleet(
            self, *line, environment=kept | self._environment | dict(environment or {}), cwd=cwd or self.folder
        )
        self.fleets.append(fleet)
        return fleet

    def run_fleet(self, *words: str, **settings: Any) -> Fleet:
        """Start a supervisor and wait until its workers and its maintenance process are ready."""
        fleet = self.start(*words, **settings)
        workers = int(settings.get("workers", 2))
        fleet.wait_ready(workers)
        fleet.wait_log(
            lambda event: event.get("message", "").startswith("maintenance ") and event["message"].endswith("is ready")
        )
        if workers:  # the last line of a start: lines after it come from the test
            fleet.wait_log("stop with Ctrl-C")
        return fleet

    def write(self, name: str, text: str) -> Path:
        """Write a module into the test's folder `handlers`; return the folder."""
        place = self.folder / "handlers"
        place.mkdir(exist_ok=True)
        (place / name).write_text(text)
        return place

    # -- waiting

    def wait(self, condition: Callable[[], T], what: str | Callable[[], str], *, limit: float = LIMIT) -> T:
        """Wait until the condition is true; return its value.

        The condition is checked when a row moves, a line is logged or a supervisor ends. It is also
        checked twice a second, because some conditions cause no event and an event could be missed.

        Raises:
            TimeoutError: after `limit` seconds, with the text `what`.
        """
        until = time.monotonic() + limit
        while True:
            if value := condition():
                return value
            left = until - time.monotonic()
            if left <= 0:
                told = what if isinstance(what, str) else what()
                raise TimeoutError(f"waited {limit} s for {told}")
            self._hear(min(left, GLANCE))

    def _hear(self, seconds: float) -> None:
        """Wait for an event, at most this long."""
        poll = select.poll()
        if not self._ears.closed:
            poll.register(self._ears.fileno(), select.POLLIN)
        for fleet in self.fleets:
            if not fleet.ended:
                poll.register(fleet.fd, select.POLLIN)
            if fleet.code is None:
                poll.register(fleet.pidfd, select.POLLIN)
        heard = {fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)}
        for fleet in self.fleets:
            if not fleet.ended and fleet.fd in heard:
                fleet.drain()
            if fleet.pidfd in heard:
                fleet.note_exit()
        if not self._ears.closed and self._ears.fileno() in heard:
            try:
                for _ in self._ears.notifies(timeout=0):
                    pass
            except psycopg.OperationalError:
                self._ears.close()

    def wait_state(self, job: int, *states: str, limit: float = LIMIT) -> dict[str, Any]:
        """Wait until a job is in one of these states; return its row."""
        self.wait(
            lambda: self.state(job) in states,
            lambda: f"job {job} to be {' or '.join(states)}; it is {self._shown(job)}",
            limit=limit,
        )
        return self.job(job)

    def wait_running(self, job: int, limit: float = LIMIT) -> dict[str, Any]:
        """Wait until a job is claimed; return its row."""
        return self.wait_state(job, "running", limit=limit)

    def wait_all(self, jobs: list[int], *states: str, limit: float = LIMIT) -> None:
        """Wait until all these jobs are in one of these states."""
        count = "SELECT count(*) FROM jobherd.jobs WHERE id = ANY (%s) AND state = ANY (%s)"
        self.wait(
            lambda: self.run(count, jobs, list(states))[0][0] == len(jobs),
            lambda: f"{len(jobs)} jobs to be {' or '.join(states)}; they are {self.census(jobs)}",
            limit=limit,
        )

    # -- queries

    def call(self, statement: str, *parameters: object) -> Any:
        """Return the one value of a statement."""
        return self.run(statement, *parameters)[0][0]

    def census(self, jobs: list[int]) -> dict[str, int]:
        """Return how many of these jobs are in each state."""
        return dict(self.run("SELECT state, count(*) FROM jobherd.jobs WHERE id = ANY (%s) GROUP BY 1", jobs))

    def moves(self, job: int) -> list[tuple[str, str]]:
        """Return every insert of a job into a table, in order: (table, state or outcome)."""
        return self.run("SELECT place, state FROM t_trans WHERE job = %s AND op = 'INSERT' ORDER BY n", job)

    def runs(self, job: int) -> int:
        """Return how often a job was claimed.

        Recording outcomes of its claim can move a job within `running`, so tokens count, not rows.
        """
        return self.call(
            "SELECT count(DISTINCT token) FROM t_trans WHERE job = %s AND place = 'running' AND op = 'INSERT'", job
        )

    def attempts(self, job: int) -> list[dict[str, Any]]:
        """Return the attempts of a job, oldest first."""
        return self.job(job)["history"]

    def completed_twice(self) -> list[int]:
        """Return the jobs that completed more than once; there must be none."""
        twice = "SELECT job FROM t_trans WHERE place = 'history' AND op = 'INSERT' AND state = 'completed' GROUP BY 1 HAVING count(*) > 1"
        return [row[0] for row in self.run(twice)]

    def _shown(self, job: int) -> object:
        with suppress(psycopg.Error):
            row = self.run("SELECT state, attempts, crashes, error FROM jobherd.jobs WHERE id = %s", job)
            return (*row, self.moves(job))
        return "unknown"

    def show(self) -> None:
        """Print the supervisors' logs; pytest shows them if the test failed."""
        for fleet in self.fleets:
            print(f"--- supervisor {fleet.pid}\n{fleet.text()}")

    def close(self) -> None:
        """Kill all supervisors and close the connections."""
        for fleet in self.fleets:
            fleet.close()
        self._ears.close()
        super().__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_foreign(event: dict[str, Any]) -> bool:
    """Return whether a line is about orphans of another test's killed supervisor on this host."""
    return "which a dead supervisor had left behind" in event.get("message", "")


def is_ready(event: dict[str, Any]) -> bool:
    """Return whether a line reports that a worker is ready."""
    message = event.get("message", "")
    return message.startswith("worker ") and message.endswith("is ready")


def _event(line: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(line)
        # otherwise a handler printed it
        if isinstance(found, dict) and {"at", "level", "process", "message"} <= found.keys():
            return found
    return {"raw": line.decode(errors="replace")}


def _shown(event: dict[str, Any]) -> str:
    if "raw" in event:
        return event["raw"]
    rest = {
        name: value
        for name, value in event.items()
        if name not in {"at", "level", "process", "logger", "message", "traceback"}
    }
    return f"{event['at'][11:]} {event['level']:<7} {event['process']}: {event['message']} {rest or ''}{event.get('traceback', '')}"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    return "?"
