"""Defines all settings: each with its explanation, unit, default and range.

A value comes from a flag, else from the environment (`JOBHERD_*`), else from `jobherd.toml` or
`[tool.jobherd]` in `pyproject.toml` of the working directory, else it is the default. A value that
was not given is never treated as if the default had been given.

Flags, errors and `docs/settings.md` are generated from the fields below: to add a setting, add a
field. This module must not act on a setting.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.field import Setting, setting
from jobherd.supervisor.settings.sources import Given, SettingsError, gather, still_there

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_TOKEN = re.compile(r"(?:[A-Za-z0-9_.@-]{1,40}=)?[!-+\--~]{16,200}")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Times are in seconds, sizes in bytes.

    `Settings.load` reads them; `Settings()` has only the defaults.
    """

    # -- database
    dsn: str | None = setting(
        None,
        values.dsn(),
        "The database. Without a value, Jobherd starts an embedded PostgreSQL and logs that.",
        group="Database", variables=("DATABASE_URL",), metavar="DSN", says="an embedded PostgreSQL", secret=True, for_good=True,
    )  # fmt: skip
    listen_dsn: str | None = setting(
        None,
        values.dsn(),
        "Where the supervisor listens and renews its lease if `dsn` leads through a pooler. LISTEN needs its own session, so the supervisor does not use it through a pooler.",
        group="Database", metavar="DSN", says="the same as `dsn`", secret=True, for_good=True,
    )  # fmt: skip
    schema: str = setting(
        "jobherd",
        values.schema(),
        "The database schema that holds the queue.",
        group="Database",
        metavar="NAME",
        for_good=True,
    )
    embedded_dir: Path = setting(  # noqa: RUF009  # a path never changes
        Path(),
        values.path(),
        "The folder in which the embedded PostgreSQL stores its `.jobherd/`.",
        group="Database", metavar="PATH", says="the working directory", for_good=True,
    )  # fmt: skip
    db_retry_initial: float = setting(
        0.5,
        values.span(0.1, 60),
        "Time to wait before the first attempt to reconnect to a lost database. It doubles with each attempt, with jitter.",
        group="Database", metavar="TIME",
    )  # fmt: skip
    db_retry_max: float = setting(
        30.0,
        values.span(0.5, 300),
        "Longest time to wait between two attempts to reconnect.",
        group="Database",
        metavar="TIME",
    )
    db_retry_max_attempts: int = setting(
        0,
        values.whole(1, 10_000, zero="indefinitely"),
        "Attempts to reach a database that does not answer before the supervisor exits with 69, so that its service manager is notified. "
        "The jobs that run then are released, or the next supervisor records their outcomes.",
        group="Database", metavar="N", says="0: indefinitely",
    )  # fmt: skip
    lease: float = setting(
        15.0,
        values.span(3, 3600),
        "Time without a renewal after which other supervisors may reclaim a supervisor's jobs. A supervisor renews its lease three times in that span.",
        group="Database", metavar="TIME",
    )  # fmt: skip

    # -- work
    handlers: tuple[str, ...] = setting(
        (),
        values.words("folders, files or dotted modules", ":"),
        "Where the handlers are. You can repeat the flag; in a variable, separate the values with colons.",
        group="Work", metavar="PATH", says="none",
    )  # fmt: skip
    hooks: tuple[str, ...] = setting(
        (),
        values.words("folders, files or dotted modules", ":"),
        "Where hooks are, in addition to those in the modules of `handlers`. Handlers in these modules are not served. Their middleware is the outermost.",
        group="Work", metavar="PATH", says="none",
    )  # fmt: skip
    reload: bool = setting(
        False,
        values.switch(),
        "For development: reload when a Python file changes in `handlers`, `hooks` or `app_dir`. If the new code does not load, the old "
        "workers stay.",
        group="Work", for_good=True,
    )  # fmt: skip
    app_dir: Path = setting(  # noqa: RUF009  # a path never changes
        Path(),
        values.path(),
        "The folder that is first on the import path of workers, so that handlers can import your code.",
        group="Work", metavar="PATH", says="the working directory",
    )  # fmt: skip
    code_version: str = setting(
        "",
        values.label(),
        "The version of your code that post-mortems show: a commit, a tag, an image.",
        group="Work", metavar="NAME", says="the commit that the git repository of `app_dir` is at",
    )  # fmt: skip
    queues: tuple[str, ...] = setting(
        (),
        values.queues(),
        "The queues to serve. `batch*` is every queue whose name begins with `batch`. `high:2` reserves two of the workers for that queue. "
        "`queue_order` says how workers choose between the queues.",
        group="Work", metavar="NAMES", says="all",
    )  # fmt: skip
    queue_priorities: tuple[tuple[str, int], ...] = setting(
        (),
        values.numbers(-32768, 32767),
        "Strict tiers: workers claim from the queues with the lowest number first, whatever the weights. A queue without a number has 0.",
        group="Work", metavar="NAMES", says="none",
    )  # fmt: skip
    queue_order: str = setting(
        "turns",
        values.choice("turns", "strict"),
        "turns: workers take turns between the queues that hold jobs, by `queue_weights`. strict: workers claim from the first queue in "
        "`queues` that holds a job; without `queues`, the most urgent job of all queues comes first.",
        group="Work", metavar="ORDER",
    )  # fmt: skip
    queue_weights: tuple[tuple[str, int], ...] = setting(
        (),
        values.numbers(1, 1000),
        "The share of each queue in the time of the workers: with `mail=1,default=3`, `default` gets three times as much as `mail` while both "
        "hold jobs. A queue without a weight has 1.",
        group="Work", metavar="NAMES", says="none",
    )  # fmt: skip
    queue_max_concurrency: tuple[tuple[str, int], ...] = setting(
        (),
        values.numbers(1, 100_000),
        "The most jobs of a queue that this supervisor runs at a time. For a limit over all hosts, use `jobherd limit`.",
        group="Work", metavar="NAMES", says="none",
    )  # fmt: skip
    max_claim_batch: int = setting(
        0,
        values.whole(1, 1000, zero="as `claim_size` says"),
        "The most jobs of one queue that a worker claims at a time. A claim never mixes queues.",
        group="Work", metavar="N", says="0: as `claim_size` says",
    )  # fmt: skip
    max_claim_per_worker: int = setting(
        0,
        values.whole(1, 1000, zero="as `claim_size` says"),
        "The most claimed jobs that a worker has at a time, including the one that runs.",
        group="Work", metavar="N", says="0: as `claim_size` says",
    )  # fmt: skip
    coalesce_notifies: int = setting(
        1,
        values.whole(1, 1000),
        "How many notifications that arrive together wake one worker. A notification tells that a queue has jobs, not how many.",
        group="Work", metavar="N",
    )  # fmt: skip
    claim_size: int = setting(
        500,
        values.whole(1, 1000),
        "The most jobs that a worker claims at a time. It claims no more than it expects to run within `claim_window`. If the whole host fails, "
        "the finished jobs of a claim whose outcomes are not yet written run again: 1 limits that to one job.",
        group="Work", metavar="N",
    )  # fmt: skip
    claim_window: float = setting(
        0.05,
        values.span(0.001, 60, zero="whole batches, whatever they take"),
        "How much work a worker claims at a time, estimated from recent durations of the kinds. If a job takes longer, the worker's claimed, "
        "unstarted jobs are released and the outcomes of its finished jobs are written.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    budget: tuple[str, ...] = setting(
        (),
        values.amounts(),
        "The resources that all running jobs of this supervisor may use together, by their `cost`. A job that does not fit is skipped until enough is free.",
        group="Work", metavar="NAME=AMOUNT", says="none: no budget",
    )  # fmt: skip
    budget_patience: float = setting(
        60.0,
        values.span(0.1, 86400),
        "Time that a job with a cost waits before its share of the budget is reserved, so that smaller jobs do not overtake it indefinitely.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    poll: float = setting(
        5.0,
        values.span(1, 300),
        "Backstop: interval, varied by up to a tenth, after which one worker looks for jobs although no notification arrived.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    unknown_delay: float = setting(
        60.0,
        values.span(1, 86400),
        "Time after which a job of an unknown kind is due again: a supervisor that has no handler for the kind releases the job, since another host may have one.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    unknown_for: float = setting(
        86400.0,
        values.span(60, 30 * 86400),
        "Age at which a job of an unknown kind fails.",
        group="Work",
        metavar="TIME",
    )
    sweep: float = setting(
        2.0,
        values.span(0.2, 60),
        "How often the maintenance process looks for running jobs whose worker no longer exists.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    long_transaction: float = setting(
        60.0,
        values.span(0.001, 86400),
        "Jobherd logs a warning about a job's transaction that was open longer. While a transaction is open, PostgreSQL cannot vacuum any row "
        "that was updated or deleted since the transaction began.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    until_empty: bool = setting(
        False,
        values.switch(),
        "Run all jobs in the queues, then exit: with 0, or with 1 if a job failed. For CI, cron and tests.",
        group="Work",
    )
    ignore_failures: bool = setting(
        False, values.switch(), "With `until_empty`: exit with 0 even if jobs failed.", group="Work"
    )

    # -- child processes
    workers: int = setting(
        4,
        values.whole(0, 64),
        "Number of workers. The signals TTIN and TTOU add and remove one.",
        group="Children",
        metavar="N",
    )
    max_workers: int = setting(
        64,
        values.whole(1, 64),
        "The most workers that TTIN can add up to. The supervisor reserves shared memory for this number.",
        group="Children", metavar="N", for_good=True,
    )  # fmt: skip
    spawn_timeout: float = setting(
        10.0,
        values.span(0.5, 600),
        "Time a new child process has to become ready before it is killed and restarted. Also applies to a process that is stopped by a signal (SIGSTOP) while it runs no job.",
        group="Children", metavar="TIME",
    )  # fmt: skip
    respawn_initial: float = setting(
        0.1,
        values.span(0.01, 60),
        "Time to wait before a crashed child process is restarted. It doubles with each crash in a row, with jitter.",
        group="Children", metavar="TIME",
    )  # fmt: skip
    respawn_max: float = setting(
        30.0,
        values.span(0.1, 3600),
        "Longest time to wait before a crashed child process is restarted.",
        group="Children",
        metavar="TIME",
    )
    max_jobs: int = setting(
        0,
        values.whole(1, 1_000_000_000, zero="never"),
        "Replace a worker after this number of jobs.",
        group="Children", metavar="N", says="0: never",
    )  # fmt: skip
    max_age: float = setting(
        0.0,
        values.span(1, 30 * 86400, zero="never"),
        "Replace a worker that is this old, between two jobs.",
        group="Children", metavar="TIME", says="0: never",
    )  # fmt: skip
    max_rss: int = setting(
        0,
        values.size(32_000_000, 10**13, zero="never"),
        "Replace a worker that uses more memory than this. Jobherd also checks while a job runs, and lets that job end first.",
        group="Children", metavar="SIZE", says="0: never",
    )  # fmt: skip
    jitter: float = setting(
        0.1,
        values.fraction(0, 0.5),
        "Share by which the three limits above vary from worker to worker, so that not all are replaced at the same time.",
        group="Children", metavar="SHARE",
    )  # fmt: skip

    # -- webhooks
    webhook_secret: tuple[str, ...] = setting(
        (),
        values.words("secrets of 16 to 200 printable characters, without commas", ",", pattern=re.compile(r"[!-+\--~]{16,200}")),
        "The secret that signs webhook calls. Give two while you replace one with the other. Without a secret, this supervisor calls no webhooks.",
        group="Webhooks", metavar="SECRET", says="none", secret=True,
    )  # fmt: skip
    webhook_allow: tuple[str, ...] = setting(
        (),
        values.words("host names, addresses or networks", ","),
        "Hosts that webhooks may call although their address is private, and by plain http: `hooks.internal`, `10.1.0.0/16`.",
        group="Webhooks", metavar="HOSTS", says="none",
    )  # fmt: skip
    webhook_timeout: float = setting(
        10.0, values.span(0.1, 60), "How long each step of a webhook's call may take.", group="Webhooks", metavar="TIME"
    )

    # -- dashboard
    dashboard: bool = setting(
        True,
        values.switch(),
        "Serve the dashboard at `http`, if the extra `web` is installed. Health and metrics are served either way.",
        group="The page",
    )  # fmt: skip
    dashboard_operate_token: tuple[str, ...] = setting(
        (),
        values.words("tokens of 16 to 200 printable characters, without commas", ",", pattern=_TOKEN),
        "Tokens with which users may view and act: pause, retry, cancel. A name before a token appears in the audit log: `alice=...`. Give tokens "
        "in the environment rather than as a flag, which every OS user on the host can read.",
        group="The page", metavar="TOKEN", says="none: only this host can open the dashboard", secret=True,
    )  # fmt: skip
    dashboard_view_token: tuple[str, ...] = setting(
        (),
        values.words("tokens of 16 to 200 printable characters, without commas", ",", pattern=_TOKEN),
        "Tokens with which users may view the dashboard but not act.",
        group="The page", metavar="TOKEN", says="none", secret=True,
    )  # fmt: skip
    dashboard_hosts: tuple[str, ...] = setting(
        (),
        values.words("names of hosts", ",", pattern=re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9a-fA-F:.]{2,45}")),
        "Host names that the dashboard accepts in addition to those of the host itself: `jobs.example.com`. With tokens and without names, it "
        "accepts every name.",
        group="The page", metavar="HOSTS", says="none",
    )  # fmt: skip
    dashboard_path: str = setting(
        "",
        values.url_path(),
        "The path under which a proxy serves the dashboard, if the proxy removes that path before it forwards a request.",
        group="The page", metavar="PATH", says="none",
    )  # fmt: skip
    dashboard_read_only: bool = setting(
        False, values.switch(), "Allow no changes from the dashboard, whatever the token.", group="The page"
    )

    # -- shutdown
    grace: float = setting(
        5.0,
        values.span(0.1, 300),
        "Time between the steps of the stop sequence for a job past its timeout: an exception in the handler, then SIGTERM, then SIGKILL.",
        group="Shutdown", metavar="TIME",
    )  # fmt: skip
    drain_timeout: float = setting(
        300.0,
        values.span(0, 86400),
        "Time that running jobs may continue after TERM or Ctrl-C. Interrupted jobs return to the queue; the attempt is not counted.",
        group="Shutdown", metavar="TIME",
    )  # fmt: skip

    # -- observation
    http: tuple[str, int] | None = setting(
        ("127.0.0.1", 8790),
        values.address(),
        "Address at which the dashboard, /metrics, /livez, /readyz and /startupz are served. On an address that other hosts can reach, the dashboard "
        "needs a token.",
        group="Watching", metavar="HOST:PORT", says="127.0.0.1:8790", for_good=True,
    )  # fmt: skip
    log_capture: bool = setting(
        True,
        values.switch(),
        "Keep what handlers print and log with the attempt. Standard output and error of a worker are then a pipe; each line that was printed "
        "goes to the supervisor's log as a message when the job ends.",
        group="Watching",
    )  # fmt: skip
    log_size: int = setting(
        65536,
        values.whole(1024, 65536),
        "Most bytes of output and logs stored per attempt. The latest are kept.",
        group="Watching", metavar="BYTES",
    )  # fmt: skip
    audit_keep: float = setting(
        365 * 86400.0,
        values.span(86400, 3650 * 86400, zero="indefinitely"),
        "How long audit entries are kept: who paused, resumed, limited, canceled, retried, purged or sent a fleet command (`jobherd.audit`).",
        group="Watching", metavar="TIME",
    )  # fmt: skip
    metrics_tenants: int = setting(
        0,
        values.whole(1, 1000, zero="none"),
        "How many tenants the metrics show by name: those with the most jobs. The others are counted together.",
        group="Watching", metavar="N", says="0: none",
    )  # fmt: skip
    log_jobs: str = setting(
        "auto",
        values.choice("auto", "all", "failures", "none"),
        "Which finished jobs get a log line. failures: a warning for each failed attempt and an error for each failed job. "
        "all: also a line for every other outcome. auto: `all` if standard error is a terminal, `failures` otherwise. "
        "If there are too many lines about one kind, Jobherd leaves some out and logs how many.",
        group="Watching", metavar="WHICH", says="auto",
    )  # fmt: skip
    log_format: str = setting(
        "auto",
        values.choice("auto", "text", "json"),
        "auto: text on a terminal, JSON otherwise.",
        group="Watching",
        metavar="FORMAT",
    )
    log_level: str = setting(
        "INFO",
        values.choice("DEBUG", "INFO", "WARNING", "ERROR"),
        "The lowest level that is logged.",
        group="Watching",
        metavar="LEVEL",
    )

    given: Given = field(default_factory=Given, repr=False, compare=False)
    """Where the values came from, to explain them and to read them again."""

    @classmethod
    def load(
        cls,
        flags: Mapping[str, object] = MappingProxyType({}),
        *,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
        only: Iterable[str] | None = None,
    ) -> Self:
        """Read the settings.

        Args:
            flags: values of the command line, by field name; an absent one was not given.
            environ: the environment, by default the process's own. An empty variable counts as not
                set.
            directory: the folder of `jobherd.toml` and `pyproject.toml`, by default the working
                directory.
            only: names to read; the others keep their defaults. So a command that only needs the
                database does not fail because of other settings.

        Raises:
            SettingsError: with one sentence for each problem.

        >>> Settings.load({"workers": "2"}, environ={}, directory=Path("/")).workers
        2
        """
        told = specifications()
        given = gather(
            {name: told[name] for name in (told if only is None else only)},
            flags,
            environ=environ,
            directory=directory,
            known=told,
        )
        loaded = cls(**given.values, given=given)
        if problems := loaded.contradictions():
            raise SettingsError(problems)
        return loaded

    def again(self) -> Self:
        """Return the settings, read again from the same flags and places, for SIGHUP.

        Settings that need a restart keep their values. With another schema, children would claim
        under a registration that does not exist. With more workers wanted than there are slots, a
        reload would never end. `given.waiting` names the changed ones.

        Raises:
            SettingsError: the settings cannot be used.
        """
        fresh = type(self).load(self.given.flags, directory=self.given.directory)
        still_there(self.given, fresh.given)
        kept = {name: getattr(self, name) for name, told in specifications().items() if told.for_good}
        waiting = tuple(name for name, value in kept.items() if getattr(fresh, name) != value)
        sources = {**fresh.given.sources, **dict.fromkeys(waiting, "the start of this supervisor")}
        result = replace(fresh, **kept, given=replace(fresh.given, sources=sources, waiting=waiting))
        if problems := result.contradictions():
            raise SettingsError(problems)
        return result

    def source(self, name: str) -> str:
        """Return the source of a value, such as "--workers", "JOBHERD_WORKERS" or "default"."""
        return self.given.sources.get(name, "default")

    @property
    def served(self) -> tuple[str, ...]:
        """Served queues and prefixes, the most urgent first, without their numbers of workers."""
        named = tuple(dict.fromkeys(queue.partition(":")[0] for queue in self.queues))
        if not self.queue_priorities:
            return named
        order = dict(self.queue_priorities)
        return tuple(sorted(named or (*order, *({"*"} - set(order))), key=lambda queue: order.get(queue, 0)))

    @property
    def tiers(self) -> tuple[int, ...]:
        """A number for each served queue.

        Workers claim from a queue only if those with a lower number are empty.
        """
        if self.queue_order == "strict":
            return tuple(range(len(self.served)))
        numbers = dict(self.queue_priorities)
        return tuple(numbers.get(queue, 0) for queue in self.served)

    @property
    def reserved(self) -> tuple[tuple[str, int], ...]:
        """Queues with reserved workers, and how many."""
        return tuple((queue, int(count)) for queue, _, count in (each.partition(":") for each in self.queues) if count)

    @property
    def queue_turns(self) -> bool:
        """Whether workers take turns between the queues."""
        return self.queue_order == "turns"

    @property
    def webhooks(self) -> bool:
        """Whether workers can sign webhook calls."""
        return bool(self.webhook_secret)

    @property
    def web(self) -> bool:
        """Whether there is a web process."""
        return self.http is not None

    @property
    def most_claimed(self) -> int:
        """Maximum number of jobs per claim."""
        return min(limit for limit in (self.claim_size, self.max_claim_batch, self.max_claim_per_worker) if limit)

    def serves(self, queue: str) -> bool:
        """Return whether a queue is served here.

        >>> Settings(queues=("high:2", "batch*")).serves("batch-eu")
        True
        """
        if not self.queues:
            return True  # called for each job that causes a wake-up
        served = self.served
        return not served or any(
            queue == each or (each.endswith("*") and queue.startswith(each[:-1])) for each in served
        )

    def resolved_log_format(self) -> str:
        """Return text or json: `auto` is text when standard error is a terminal."""
        if self.log_format != "auto":
            return self.log_format
        return "text" if _at_terminal() else "json"

    def resolved_log_jobs(self) -> str:
        """Return all, failures or none: `auto` is all when standard error is a terminal."""
        if self.log_jobs != "auto":
            return self.log_jobs
        return "all" if _at_terminal() else "failures"

    def contradictions(self) -> tuple[str, ...]:
        """Return a sentence for each pair of settings that contradict each other."""
        pairs = (("workers", "max_workers"), ("db_retry_initial", "db_retry_max"), ("respawn_initial", "respawn_max"))
        names = [each.partition("=")[0] for each in self.budget]
        twice = tuple(
            f"budget (from {self.source('budget')}) names {name} twice: give one amount"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        )
        if self.queue_weights and self.queue_order == "strict":
            given = f"queue_weights (from {self.source('queue_weights')}) has no effect with queue_order = strict"
            twice += (f"{given} (from {self.source('queue_order')}): remove one of them",)
        kept = sum(count for _, count in self.reserved)
        others = len(self.served) > len(self.reserved)
        if kept and kept + others > self.workers:
            rest = " leaves none for the other queues" if others else " is fewer"
            told = f"queues = {','.join(self.queues)} (from {self.source('queues')}) keeps {kept} workers for queues of their own"
            return (
                *twice,
                f"{told}, workers = {self.workers} (from {self.source('workers')}){rest}: start more or keep fewer",
            )
        return twice + tuple(
            f"{low} = {getattr(self, low):g} (from {self.source(low)}) is more than "
            f"{high} = {getattr(self, high):g} (from {self.source(high)}): lower the one or raise the other"
            for low, high in pairs
            if getattr(self, low) > getattr(self, high)
        )


def _at_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def specifications() -> dict[str, Setting]:
    """Return the description of each setting, by name, in order."""
    return {each.name: each.metadata["setting"] for each in fields(Settings) if "setting" in each.metadata}


def shown(name: str, value: object) -> str:
    """Return a setting's value in its written form; a secret is not shown."""
    match value:
        case None:
            return "off" if name == "http" else "none"
        case _ if specifications()[name].secret:
            return "(set)" if value else "none"
        case bool():
            return str(value).lower()
        case (str() as host, int() as port):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case tuple():
            parts = [f"{part[0]}={part[1]}" if isinstance(part, tuple) else str(part) for part in value]
            return (specifications()[name].reader.separator or ",").join(parts) or "none"
        case float() if name != "jitter":
            return values.show_span(value)
        case _:
            return str(value)


def render_settings_markdown() -> str:
    """Return `docs/settings.md`; a test compares the two.

    `python -m jobherd.supervisor.settings.definitions > docs/settings.md` writes that file.
    """
    # the page is rarely generated, settings are read at every start
    from jobherd.supervisor.settings.page import render  # noqa: PLC0415

    return render(specifications(), {each.name: each.default for each in fields(Settings)})


if __name__ == "__main__":
    print(render_settings_markdown(), end="")
