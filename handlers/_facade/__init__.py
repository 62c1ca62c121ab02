"""Jobherd: background jobs on PostgreSQL, each worker a separate process.

`from jobherd import handler, Client, Job` is the public Python API, for authors of handlers and for
producers. `jobherd.testing` runs handlers in tests, `jobherd.remote` works through a gateway. This
package must not import anything when it is imported: every submodule of `jobherd` imports it first.

Example:
    >>> from jobherd import handler
    >>> @handler("mail:receipt")
    ... def receipt(order_id: int) -> None: ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobherd.handlers import *  # noqa: F403  # the names are those of `__all__` there

_SUBMODULES = frozenset(
    {"django", "handlers", "remote", "sentry", "sql", "sqlalchemy", "supervisor", "testing", "workers"}
)


def __getattr__(name: str) -> object:
    """Return a public name of `jobherd.handlers`, which is imported on first use."""
    if not name.startswith("_") and name not in _SUBMODULES:
        api = importlib.import_module("jobherd.handlers")
        if name in api.__all__:
            return getattr(api, name)
    message = f"module 'jobherd' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    """Return the public names and the module's own."""
    return sorted({*globals(), *_SUBMODULES, *importlib.import_module("jobherd.handlers").__all__})
