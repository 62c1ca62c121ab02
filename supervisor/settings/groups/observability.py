"""Settings about addresses, logs, metrics and the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from jobherd.supervisor.settings import address_readers
from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.field import setting


@dataclass(frozen=True)
class ObservabilitySettings:
    """Settings about addresses, logs, metrics and the audit log."""

    http: tuple[str, int] | None = setting(
        ("127.0.0.1", 8790),
        address_readers.address(),
        "Address at which the dashboard, /metrics, /livez, /readyz and /startupz are served. On an address that "
        "other hosts can reach, the dashboard "
        "needs a token.",
        group="Observability", metavar="HOST:PORT", says="127.0.0.1:8790", for_good=True,
    )  # fmt: skip
    log_capture: bool = setting(
        True,
        values.switch(),
        "Keep what handlers print and log with the attempt. Standard output and error of a worker are then a pipe; "
        "each line that was printed "
        "goes to the supervisor's log as a message when the job ends.",
        group="Observability",
    )  # fmt: skip
    log_size: int = setting(
        65536,
        values.whole(1024, 65536),
        "Most bytes of output and logs stored per attempt. The latest are kept.",
        group="Observability", metavar="BYTES",
    )  # fmt: skip
    audit_keep: float = setting(
        365 * 86400.0,
        values.span(86400, 3650 * 86400, zero="indefinitely"),
        "How long audit entries are kept: who paused, resumed, limited, canceled, retried, purged or sent a fleet "
        "command (`jobherd.audit`).",
        group="Observability", metavar="TIME",
    )  # fmt: skip
    metrics_tenants: int = setting(
        0,
        values.whole(1, 1000, zero="none"),
        "How many tenants the metrics show by name: those with the most jobs. The others are counted together.",
        group="Observability", metavar="N", says="0: none",
    )  # fmt: skip
    log_jobs: str = setting(
        "auto",
        values.choice("auto", "all", "failures", "none"),
        "Which finished jobs get a log line. failures: a warning for each failed attempt and an error for each "
        "failed job. "
        "all: also a line for every other outcome. auto: `all` if standard error is a terminal, `failures` otherwise. "
        "If there are too many lines about one kind, Jobherd leaves some out and logs how many.",
        group="Observability", metavar="WHICH", says="auto",
    )  # fmt: skip
    log_format: str = setting(
        "auto",
        values.choice("auto", "text", "json"),
        "auto: text on a terminal, JSON otherwise.",
        group="Observability",
        metavar="FORMAT",
    )
    log_level: str = setting(
        "INFO",
        values.choice("DEBUG", "INFO", "WARNING", "ERROR"),
        "The lowest level that is logged.",
        group="Observability",
        metavar="LEVEL",
    )
