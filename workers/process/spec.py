"""What a child process gets at its fork: its slot, its pipes, its status board, its settings.

Values only. Nothing here acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard


MARKER: Final = "JOBHERD_CHILD"
"""Environment variable by which the supervisor finds programs that a handler has started and left
behind, whatever process group they are in.
"""

RECIPIENTS: Final = {
    "dashboard_operate_token": "web",
    "dashboard_view_token": "web",
    "gateway_token": "gateway",
    "webhook_secret": "worker",
}
"""The secret settings, and the only kind of child process that gets each of them."""

SECRETS: Final = tuple(f"JOBHERD_{name.upper()}" for name in RECIPIENTS)
"""Environment variables removed in every child process: handlers and the programs that they start
would see them.
"""


def is_served(queue: str, served: Sequence[str]) -> bool:
    """Return whether a queue is one of these, or has one of these prefixes. Empty: every queue is served.

    >>> is_served("batch-eu", ("high", "batch*"))
    True
    """
    return not served or any(queue == each or (each.endswith("*") and queue.startswith(each[:-1])) for each in served)


@dataclass(frozen=True, slots=True)
class UplinkSettings:
    """How a supervisor without a database gets its jobs."""

    folder: Path
    """Where the uplink has its sockets. Only this user may enter it."""
    addresses: tuple[str, ...]
    """The gateways: "HOST:PORT" or "unix:PATH"."""
    token_file: Path | None = None
    tls: bool = False
    """Whether to use TLS with the system's certificate authorities. A file implies TLS."""
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    worker_id: str = ""
    """Name under which others see this supervisor. Empty: the name of the token."""
    task_lease: float = 0.0
    """Lease of a job, which the uplink extends. 0: as the gateway decides."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """The settings that child processes get. Times in seconds.

    Each field has the name of a setting, or of a property of `Settings`, and gets its value. The defaults
    are those of tests: `child_settings` in the supervisor passes every field.
    """

    dsn: str
    schema: str = "jobherd"
    handlers: tuple[str, ...] = ()
    """Folders, files or dotted modules that contain handlers."""
    hooks: tuple[str, ...] = ()
    """Further folders, files or dotted modules, of which only hooks are used."""
    reload: bool = False
    """Handlers are reloaded when a file changes, so compiled modules must not be written: their
    check misses edits within the same second.
    """
    app_dir: Path = field(default_factory=Path)
    """First folder on the import path of child processes."""
    code_version: str = ""
    """Version of the application's code in post-mortems. Empty: the commit of `app_dir`."""
    served: tuple[str, ...] = ()
    """Queues to serve, or prefixes of them (`batch*`), the most urgent first. Empty: all queues,
    the most urgent job first.
    """
    queue_turns: bool = True
    """Whether workers take turns between the queues. False: the first queue that has a job, in the
    order of `served`; without `served`, the most urgent job.
    """
    queue_weights: tuple[tuple[str, int], ...] = ()
    """Shares of queues, or prefixes, in the workers' time. Default 1."""
    queue_priorities: tuple[tuple[str, int], ...] = ()
    """Numbers of queues, or prefixes. Queues with a lower number come first; queues with equal
    numbers take turns.
    """
    queue_max_concurrency: tuple[tuple[str, int], ...] = ()
    """The most jobs that this supervisor runs at a time, for queues or prefixes."""
    most_claimed: int = 1
    """The most jobs that a worker claims at a time."""
    claim_window: float = 0.0
    """Seconds of expected work that a worker claims at a time. 0: as many jobs as
    `most_claimed` allows.
    """
    budget: tuple[str, ...] = ()
    """Resources of this supervisor for all its running jobs together, such as `memory_mb=4000`.
    Empty: no budget.
    """
    budget_patience: float = 60.0
    """Seconds after which budget is reserved for a job that waits for it."""
    poll: float = 5.0
    """Seconds, plus or minus a tenth, after which one worker looks for work without a wake."""
    db_retry_initial: float = 0.5
    db_retry_max: float = 30.0
    """Backoff of a process that has lost its database: from `db_retry_initial`, doubling,
    to `db_retry_max`, without end.
    """
    lease: float = 15.0
    long_transaction: float = 60.0
    """A job's transaction that was open longer than this is logged as a warning."""
    grace: float = 5.0
    """Duration of each stage of the stop sequence: timer, then SIGTERM, then SIGKILL."""
    drain_timeout: float = 300.0
    """How long remote workers may finish their jobs after the gateway was dismissed."""
    unknown_delay: float = 60.0
    unknown_for: float = 86400.0
    """A job of a kind that no loaded module declares is retried after `unknown_delay`, and fails
    once it is `unknown_for` old.
    """
    sweep: float = 2.0
    """Interval at which the maintenance process looks for running jobs without an owner."""
    http: tuple[str, int] | None = ("127.0.0.1", 8790)
    dashboard: bool = False
    """Whether the dashboard is served there too, if it is installed."""
    dashboard_view_token: tuple[str, ...] = field(default=(), repr=False)
    dashboard_operate_token: tuple[str, ...] = field(default=(), repr=False)
    """Tokens that allow viewing, or operating. Without tokens, only this host is answered."""
    dashboard_hosts: tuple[str, ...] = ()
    dashboard_path: str = ""
    """Host names and path under which a proxy serves the dashboard."""
    dashboard_read_only: bool = False
    gateway: tuple[str, int] | str | None = None
    """The address of the gateway, or `unix:PATH`."""
    gateway_token: tuple[str, ...] = field(default=(), repr=False)
    """Tokens of clients that may do everything."""
    gateway_access: Path | None = None
    gateway_cert: Path | None = None
    gateway_key: Path | None = None
    gateway_client_ca: Path | None = None
    """Files of the gateway, all re-read when they change: clients, TLS, authorities of clients."""
    gateway_lease: float = 30.0
    """How long a remote worker may be silent."""
    gateway_task_lease: float = 60.0
    """How long a remote worker may keep a job without a heartbeat."""
    gateway_linger: float = 5.0
    """How long a remote worker may take to reconnect."""
    gateway_streams: int = 1000
    gateway_max_slots: int = 1000
    """The most remote workers, and the most jobs of each."""
    gateway_reflection: bool = False
    uplink: UplinkSettings | None = None
    """How jobs come through a gateway. None: processes have a database."""
    log_capture: bool = True
    log_size: int = 65536
    """Whether the output and logs of handlers are kept with the attempt, and the most bytes of it."""
    log_jobs: str = "failures"
    """Which finished jobs are logged: `all`, `failures` or `none`."""
    log_format: str = "text"
    log_level: str = "INFO"
    host: str = "localhost"
    webhook_secret: tuple[str, ...] = field(default=(), repr=False)
    """Secrets that sign webhook calls. Without them, this host makes no such calls."""
    webhooks: bool = False
    """Whether there is such a secret."""
    webhook_allow: tuple[str, ...] = ()
    webhook_timeout: float = 10.0
    metrics_tenants: int = 0
    """The most tenants that the metrics show by name."""
    audit_keep: float = 0.0
    """Seconds that an audit entry is kept. 0: indefinitely."""

    @property
    def amounts(self) -> dict[str, float]:
        """The budget by name."""
        return {name: float(amount) for name, amount in (each.split("=") for each in self.budget)}


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A slot, as its child process sees it."""

    kind: str
    slot: int
    incarnation: int
    """The supervisor's count of forks. It names this process before the database has a number for
    it.
    """
    supervisor: int
    parent: int
    """The supervisor's pid. A process whose getppid() differs is an orphan."""
    wake: int
    """File descriptor from which it reads wakes."""
    report: int
    """File descriptor to which it writes reports."""
    board: StatusBoard
    control: ControlBlock
    settings: ChildSettings
    output: tuple[int, int] | None = None
    """The pipe of the handlers' output, both ends: reading, writing. None: output is not kept."""
    deaths: int = -1
    """File descriptor of the socket that reports jobs that died with their process; -1 for kinds
    that do not get it.
    """
    boards: tuple[StatusBoard, ...] = ()
    """The status boards of all slots, for kinds that read all of them (maintenance, web). Empty for
    others.
    """
