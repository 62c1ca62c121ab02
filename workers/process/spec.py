"""What a child is handed at its fork: its place, its pipes, its board, its settings. Values only; nothing here acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard


MARKER: Final = "JOBHERD_CHILD"
"""The environment variable by which the parent finds what a handler has started and left behind, whatever group it has moved to."""

SECRETS: Final = ("JOBHERD_PAGE_OPERATE_TOKEN", "JOBHERD_PAGE_VIEW_TOKEN", "JOBHERD_WEBHOOK_SECRET")
"""Environment variables that no child process keeps: handlers and the programs that they start would see them."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What children are told of the settings. Times in seconds."""

    dsn: str
    schema: str = "jobherd"
    handlers: tuple[str, ...] = ()
    """Folders, files or dotted modules that hold jobs."""
    hooks: tuple[str, ...] = ()
    """Further folders, files or dotted modules, of which only hooks are taken."""
    reload: bool = False
    """Handlers are reloaded whenever a file changes, so no compiled module may be kept: its check takes edits within a second for none."""
    app_dir: Path = field(default_factory=Path)
    """Put first on the import path of children."""
    code_version: str = ""
    """What post-mortems call the version of the application's code; empty: the commit of `app_dir`."""
    queues: tuple[str, ...] = ()
    """The queues to serve, or prefixes of them (`batch*`), the most urgent first; none: all, the most urgent job first."""
    queue_turns: bool = True
    """Whether workers take turns between the queues. False: the first queue that holds a job, by `queues`, else the most urgent job."""
    queue_weights: Mapping[str, int] = field(default_factory=dict)
    """The shares of queues, or prefixes, in the time of the workers; 1 without one."""
    queue_tiers: Mapping[str, int] = field(default_factory=dict)
    """Numbers of queues, or prefixes. Queues with a lower number come first; equal ones take turns."""
    limits: tuple[tuple[str, int], ...] = ()
    """Queues, or prefixes, of which this supervisor runs at most so many jobs at a time."""
    batch: int = 1
    """How many jobs a child claims at a time, at the most."""
    hold: float = 0.0
    """How many seconds of expected work it claims at a time; 0: as many jobs as it may."""
    budget: Mapping[str, float] = field(default_factory=dict)
    """What all running jobs together may take of this host, by resource; empty: there is no budget."""
    budget_patience: float = 60.0
    """Seconds after which room is kept for a job that waits for it."""
    poll: float = 5.0
    """Backstop: after so long one child looks for work without anybody having called, give or take a tenth."""
    retry_initial: float = 0.5
    retry_max: float = 30.0
    """Back-off of a child that has lost its database: from initial, doubling, to max, for ever."""
    lease: float = 15.0
    long_transaction: float = 60.0
    """A job's transaction that was open longer is warned about."""
    grace: float = 5.0
    """Each rung of the ladder: timer, then SIGTERM, then SIGKILL."""
    unknown_delay: float = 60.0
    unknown_for: float = 86400.0
    """A job of a kind that no module here declares comes back after `unknown_delay`, and fails once it is `unknown_for` old."""
    sweep: float = 2.0
    """How often a keeper looks for running jobs that nobody holds."""
    http: tuple[str, int] | None = ("127.0.0.1", 8790)
    page: bool = False
    """Whether the page is served there too, if it is installed."""
    page_view_token: tuple[str, ...] = field(default=(), repr=False)
    page_operate_token: tuple[str, ...] = field(default=(), repr=False)
    """Who shows one of these may look, or act; with none, only this machine is answered. Only the web process is told."""
    page_hosts: tuple[str, ...] = ()
    page_path: str = ""
    """The names and the path by which it is reached through a proxy."""
    page_read_only: bool = False
    log_capture: bool = True
    log_size: int = 65536
    """Whether what handlers print and log is kept with the attempt, and how many bytes of it at the most."""
    log_jobs: str = "failures"
    """Which finished jobs get a log line: `all`, `failures` or `none`."""
    log_format: str = "text"
    log_level: str = "INFO"
    host: str = "localhost"
    webhook_secret: tuple[str, ...] = field(default=(), repr=False)
    """What signs the calls of webhooks; without it they are not called here. Only workers are told."""
    webhooks: bool = False
    """Whether there is such a secret."""
    webhook_allow: tuple[str, ...] = ()
    webhook_timeout: float = 10.0
    metrics_tenants: int = 0
    """How many tenants the metrics show by name."""
    audit_keep: float = 0.0
    """How many seconds a note of the audit is kept; 0: for ever."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A numbered place for a child, as the child sees it."""

    kind: str
    slot: int
    incarnation: int
    """The parent's count of forks: names this child before the database has ever heard of it."""
    supervisor: int
    parent: int
    """The parent's pid: a child whose getppid() differs is an orphan."""
    wake: int
    """File number it reads nudges from."""
    report: int
    """File number it sends reports to."""
    board: StatusBoard
    control: ControlBlock
    settings: ChildSettings
    output: tuple[int, int] | None = None
    """The pipe of what its handlers print, both ends: reading, writing. None: it is not kept."""
    deaths: int = -1
    """File number of the socket that tells of jobs that died with their process; -1 but for the kind that is told."""
    boards: tuple[StatusBoard, ...] = ()
    """Every slot's board, for the kinds that look at all of them (keeper, web); else empty."""
