"""Numbers of workers, time limits and size limits that a plan respects, copied from the settings once.

The slot table and the plan must not depend on which settings exist or how they are read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from jobherd.supervisor.settings.definitions import Settings


@dataclass(slots=True)
class Limits:
    """Times are in seconds, sizes in bytes; 0 switches a limit off.

    The defaults are those of tests: `of` passes every field.
    """

    workers: int = 4
    max_workers: int = 64
    web: bool = True
    has_gateway: bool = False
    has_uplink: bool = False
    lease: float = 15.0
    grace: float = 5.0
    drain_timeout: float = 300.0
    spawn_timeout: float = 10.0
    respawn_initial: float = 0.1
    respawn_max: float = 30.0
    max_jobs: int = 0
    max_age: float = 0.0
    max_rss: int = 0
    jitter: float = 0.1
    claim_window: float = 0.0
    reserved: tuple[tuple[str, int], ...] = ()
    """Queues, and the number of workers that serve only that queue."""

    @property
    def patience(self) -> float:
        """Seconds for which a job may delay claimed jobs and the outcomes of earlier ones.

        Shorter than `claim_window`, so that there is time left to write these outcomes within `claim_window`.
        """
        return 0.8 * self.claim_window

    @property
    def fast_grace(self) -> float:
        """Seconds between the stages of a fast stop sequence."""
        return min(self.grace, 0.5)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that these settings imply: by name."""
        found = cls(**{each.name: getattr(settings, each.name) for each in fields(cls)})
        return found if settings.most_claimed > 1 else replace(found, claim_window=0.0)
