"""The environment variables of this process, as Python has them and as started programs see them."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final

_C_ENVIRON: Final = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
"""The environment that started programs see: os.putenv changes it, but not os.environ."""
GRPC_ENVIRONMENT: Final = {
    # Its handlers at a fork would wait for its threads. The gateway and the uplink do not fork.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # It logs on standard error, past the log's format. What matters is in the exceptions.
    "GRPC_VERBOSITY": "NONE",
}
"""Variables of the gateway and the uplink. gRPC reads them when it is loaded."""


class Environment:
    """The variables before the first job."""

    def __init__(self) -> None:
        self._environ = os.environ
        self._variables: dict[bytes, bytes] = dict(_data(os.environ))
        self._programs, _ = _seen_by_programs()
        self._note_seen()

    def is_changed(self) -> bool:
        """Return whether Python has other variables."""
        return getattr(os, "environ", None) is not self._environ or _data(os.environ) != self._variables

    def restore(self) -> None:
        """Restore the variables of Python and those that programs see."""
        os.environ = self._environ  # noqa: B003  # a job may have put a plain dictionary there
        present = _data(os.environ)
        for name in present.keys() - self._variables.keys():
            os.unsetenv(name)
            del present[name]
        for name, value in self._variables.items():
            if present.get(name) != value:
                os.putenv(name, value)
                present[name] = value
        self.restore_for_programs()
        time.tzset()

    def _note_seen(self) -> None:
        """Save the addresses of the variables that programs see.

        Comparing them takes a few hundred bytes and no text.
        """
        _, number = _seen_by_programs()
        self._place = _C_ENVIRON.value
        self._seen = (
            b"" if self._place is None else ctypes.string_at(self._place, (number + 1) * ctypes.sizeof(ctypes.c_void_p))
        )

    def is_changed_for_programs(self) -> bool:
        """Return whether programs would see other variables."""
        place = _C_ENVIRON.value
        return place != self._place or (place is not None and ctypes.string_at(place, len(self._seen)) != self._seen)

    def restore_for_programs(self) -> None:
        """Restore what programs see.

        That is `os.environ`, and variables that a module or the C library has set only for
        programs.
        """
        seen, _ = _seen_by_programs()
        for name in seen.keys() - self._programs.keys():
            os.unsetenv(name)
        for name, value in self._programs.items():
            if seen.get(name) != value:
                os.putenv(name, value)
        self._note_seen()


def _data(environ: object) -> dict[bytes, bytes]:
    """Return the dictionary behind `os.environ`.

    Comparing the mapping itself would decode each value.
    """
    return environ._data  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


def _seen_by_programs() -> tuple[dict[bytes, bytes], int]:
    """Return the variables that programs see, and the number of their entries."""
    place = ctypes.POINTER(ctypes.c_char_p).from_buffer(_C_ENVIRON)
    seen: dict[bytes, bytes] = {}
    number = 0
    while place and (entry := place[number]):
        name, _, value = entry.partition(b"=")
        if name:  # A variable without a name can be neither set nor removed.
            seen.setdefault(name, value)  # Of two entries with one name, a program finds the first.
        number += 1
    return seen, number
