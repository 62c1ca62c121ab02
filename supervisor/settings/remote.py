"""Defines the settings of `jobherd work`, whose jobs come from gateways.

They are the settings of `jobherd run`, read from the same places. What a supervisor needs its database for is
rejected, or off.
"""

from __future__ import annotations

from typing import Final

from jobherd.supervisor.settings.definitions import Settings
from jobherd.supervisor.settings.sources import flag_of

NEEDS_DATABASE: Final = ("budget", "queue_max_concurrency", "until_empty")
"""Settings that would be ignored without a database, so that they are rejected."""
FLAGS: Final = (
    "gateway_addresses", "gateway_token_file", "gateway_tls", "gateway_ca", "gateway_client_cert", "gateway_client_key",
    "worker_id", "task_lease",
    "handlers", "hooks", "reload", "app_dir", "code_version", "queues",
    "claim_size", "claim_window", "max_claim_batch", "max_claim_per_worker",
    "workers", "max_workers", "spawn_timeout", "respawn_initial", "respawn_max",
    "max_jobs", "max_age", "max_rss", "jitter", "grace", "drain_timeout",
    "log_capture", "log_size", "log_jobs", "log_format", "log_level",
)  # fmt: skip
"""The settings that `jobherd work` has as flags."""


class RemoteSettings(Settings):
    """Settings whose jobs come from gateways."""

    @property
    def has_uplink(self) -> bool:
        """Whether jobs come from gateways, and not from a database."""
        return True

    @property
    def web(self) -> bool:
        """Whether there is a web process. It would read the database."""
        return False

    @property
    def has_gateway(self) -> bool:
        """Whether there is a gateway. It would claim from the database."""
        return False

    def contradictions(self) -> tuple[str, ...]:
        """Return a sentence for each pair of settings that contradict each other, or what is missing."""
        found = list(super().contradictions())
        if not self.gateway_addresses:
            found.append("no gateway is named: give --gateway HOST:PORT, or set JOBHERD_GATEWAY_ADDRESSES")
        found += [
            f"{name} (from {self.source(name)}) needs the database, which `jobherd work` does not reach: remove it"
            for name in NEEDS_DATABASE
            if getattr(self, name)
        ]
        if (self.gateway_client_cert is None) != (self.gateway_client_key is None):
            given, missing = sorted(
                ("gateway_client_cert", "gateway_client_key"), key=lambda name: getattr(self, name) is None
            )
            found.append(
                f"{flag_of(given)} (from {self.source(given)}) needs {flag_of(missing)}: give both, or neither"
            )
        return tuple(found)
