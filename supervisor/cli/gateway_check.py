"""Checks the settings of the gateway, before a supervisor forks it.

It imports neither gRPC nor protobuf: the process of `jobherd run` becomes the supervisor.
"""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.settings.definitions import shown
from jobherd.workers.gateway.access import AccessError
from jobherd.workers.gateway.access_file import read_access
from jobherd.workers.system.local_address import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.supervisor.settings.definitions import Settings

_FILES: Final = ("gateway_cert", "gateway_key", "gateway_client_ca")


def gateway_problems(settings: Settings) -> list[str]:
    """Return a sentence for each reason why the gateway could not start, or would be open to others."""
    return [] if settings.gateway is None else list(_problems(settings))


def _problems(settings: Settings) -> Iterator[str]:
    where = f"gateway = {shown('gateway', settings.gateway)} (from {settings.source('gateway')})"
    if not (find_spec("grpc") and has_protobuf()):
        yield f"{where} needs packages that are not installed: pip install 'jobherd[grpc]'"
    if (settings.gateway_cert is None) != (settings.gateway_key is None):
        given, missing = sorted(("gateway_cert", "gateway_key"), key=lambda name: getattr(settings, name) is None)
        yield f"{given} (from {settings.source(given)}) needs {missing}: give both, or neither"
    elif settings.gateway_client_ca is not None and settings.gateway_cert is None:
        yield (
            f"gateway_client_ca (from {settings.source('gateway_client_ca')}) needs TLS: set gateway_cert and "
            "gateway_key"
        )
    if isinstance(settings.gateway, tuple) and not is_local(settings.gateway[0]):
        if settings.gateway_cert is None:
            yield f"{where} can be reached from other hosts without TLS: set gateway_cert and gateway_key"
        if not (settings.gateway_token or settings.gateway_access or settings.gateway_client_ca):
            yield (
                f"{where} can be reached from other hosts, and every client could connect: set JOBHERD_GATEWAY_TOKEN "
                "(`openssl rand -hex 20` makes one), gateway_access or gateway_client_ca"
            )
    for name in _FILES:
        if (path := getattr(settings, name)) is not None and not os.access(path, os.R_OK):
            yield f"{name} = {path} (from {settings.source(name)}) cannot be read"
    try:
        read_access(
            settings.gateway_token, settings.gateway_access, certificates=settings.gateway_client_ca is not None
        )
    except AccessError as error:
        for problem in error.problems:
            yield f"gateway_access = {settings.gateway_access} (from {settings.source('gateway_access')}): {problem}"


def has_protobuf() -> bool:
    """Look for the package without importing it, which a search for a dotted name would do."""
    google = PathFinder.find_spec("google")
    return google is not None and PathFinder.find_spec("google.protobuf", google.submodule_search_locations) is not None
