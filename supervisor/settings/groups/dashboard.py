"""Settings about the dashboard's users, hosts and path, and webhooks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobherd.supervisor.settings import address_readers
from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.field import setting

_SECRET = re.compile(r"[!-+\--~]{16,200}")


@dataclass(frozen=True)
class DashboardSettings:
    """Settings about the dashboard's users, hosts and path, and webhooks."""

    webhook_secret: tuple[str, ...] = setting(
        (),
        values.words("secrets of 16 to 200 printable characters, without commas", ",", pattern=_SECRET),
        "The secret that signs webhook calls. Give two while you replace one with the other. Without a secret, this "
        "supervisor calls no webhooks.",
        group="Webhooks", metavar="SECRET", says="none", secret=True,
    )  # fmt: skip
    webhook_allow: tuple[str, ...] = setting(
        (),
        values.words("host names, addresses or networks", ","),
        "Hosts that webhooks may call although their address is private, and by plain http: `hooks.internal`, "
        "`10.1.0.0/16`.",
        group="Webhooks", metavar="HOSTS", says="none",
    )  # fmt: skip
    webhook_timeout: float = setting(
        10.0, values.span(0.1, 60), "How long each step of a webhook's call may take.", group="Webhooks", metavar="TIME"
    )

    dashboard: bool = setting(
        True,
        values.switch(),
        "Serve the dashboard at `http`, if the extra `web` is installed. Health and metrics are served either way.",
        group="Dashboard",
    )  # fmt: skip
    dashboard_operate_token: tuple[str, ...] = setting(
        (),
        values.tokens(),
        "Tokens with which users may view and act: pause, retry, cancel. A name before a token appears in the audit "
        "log: `alice=...`. Give tokens "
        "in the environment rather than as a flag, which every OS user on the host can read.",
        group="Dashboard", metavar="TOKEN", says="none: only this host can open the dashboard", secret=True,
    )  # fmt: skip
    dashboard_view_token: tuple[str, ...] = setting(
        (),
        values.tokens(),
        "Tokens with which users may view the dashboard but not act.",
        group="Dashboard", metavar="TOKEN", says="none", secret=True,
    )  # fmt: skip
    dashboard_hosts: tuple[str, ...] = setting(
        (),
        values.words("names of hosts", ",", pattern=re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9a-fA-F:.]{2,45}")),
        "Host names that the dashboard accepts in addition to those of the host itself: `jobs.example.com`. With "
        "tokens and without names, it "
        "accepts every name.",
        group="Dashboard", metavar="HOSTS", says="none",
    )  # fmt: skip
    dashboard_path: str = setting(
        "",
        address_readers.url_path(),
        "The path under which a proxy serves the dashboard, if the proxy removes that path before it forwards a "
        "request.",
        group="Dashboard", metavar="PATH", says="none",
    )  # fmt: skip
    dashboard_read_only: bool = setting(
        False, values.switch(), "Allow no changes from the dashboard, whatever the token.", group="Dashboard"
    )
