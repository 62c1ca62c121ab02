"""Defines and loads all settings, and derives values from them.

A value comes from a flag, else from the environment (`JOBHERD_*`), else from `jobherd.toml` or
`[tool.jobherd]` in `pyproject.toml` of the working directory, else it is the default. A value that
was not given is never treated as if the default had been given.

Flags, errors and `docs/reference/settings.md` are generated from the fields in `groups/`: to add a setting, add
a field there. This module must not act on a setting.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.groups.dashboard import DashboardSettings
from jobherd.supervisor.settings.groups.database import DatabaseSettings
from jobherd.supervisor.settings.groups.gateway import GatewaySettings
from jobherd.supervisor.settings.groups.observability import ObservabilitySettings
from jobherd.supervisor.settings.groups.processes import ProcessSettings
from jobherd.supervisor.settings.groups.remote_work import GROUP, RemoteWorkSettings
from jobherd.supervisor.settings.groups.work import WorkSettings
from jobherd.supervisor.settings.sources import Given, SettingsError, gather, still_there
from jobherd.workers.process.spec import is_served

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jobherd.supervisor.settings.field import Setting

HANDLERS: Final = "handlers"
"""The default folder of handlers."""
_OWN: Final = Path(__file__).parents[2] / HANDLERS


@dataclass(frozen=True)
class Settings(
    RemoteWorkSettings,
    GatewaySettings,
    ObservabilitySettings,
    DashboardSettings,
    ProcessSettings,
    WorkSettings,
    DatabaseSettings,
):
    """All settings. Times are in seconds, sizes in bytes.

    `Settings.load` reads them; `Settings()` has only the defaults.
    """

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
        descriptions = specifications()
        wanted = {name: descriptions[name] for name in (descriptions if only is None else only)}
        given = gather(wanted, flags, environ=environ, directory=directory, known=descriptions)
        loaded = cls(**given.values, given=given)
        if "handlers" in wanted and "handlers" not in given.values:
            loaded = replace(loaded, handlers=default_handlers(given.directory))
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
        kept = {name: getattr(self, name) for name, descriptions in specifications().items() if descriptions.for_good}
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
    def has_gateway(self) -> bool:
        """Whether there is a gateway."""
        return self.gateway is not None

    @property
    def has_uplink(self) -> bool:
        """Whether jobs come from gateways, and not from a database."""
        return False

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
        return is_served(queue, self.served)

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
            reserves = (
                f"queues = {','.join(self.queues)} (from {self.source('queues')}) reserves {kept} workers for single "
                "queues"
            )
            return (
                *twice,
                (
                    f"{reserves}, workers = {self.workers} (from {self.source('workers')}){rest}: "
                    "start more or reserve fewer"
                ),
            )
        return twice + tuple(
            f"{low} = {getattr(self, low):g} (from {self.source(low)}) is more than "
            f"{high} = {getattr(self, high):g} (from {self.source(high)}): lower the one or raise the other"
            for low, high in pairs
            if getattr(self, low) > getattr(self, high)
        )


def _at_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def default_handlers(directory: Path) -> tuple[str, ...]:
    """Return the default of `handlers`: the folder of this name, if the directory has one.

    Not Jobherd's own package in a checkout: its modules are not the user's jobs.
    """
    folder = directory / HANDLERS
    return (HANDLERS,) if folder.is_dir() and not folder.samefile(_OWN) else ()


def specifications() -> dict[str, Setting]:
    """Return the description of each setting, by name, in order."""
    return {each.name: each.metadata["setting"] for each in fields(Settings) if "setting" in each.metadata}


def flags_of_run() -> tuple[str, ...]:
    """Return the names of the settings that `jobherd run` has as flags."""
    return tuple(name for name, descriptions in specifications().items() if descriptions.group != GROUP)


def shown(name: str, value: object) -> str:
    """Return a setting's value in its written form; a secret is not shown."""
    match value:
        case None:
            return "off" if name in {"http", "gateway"} else "none"
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
