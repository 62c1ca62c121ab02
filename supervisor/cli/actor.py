"""Who sits at the terminal: what the audit is told of whoever runs a command."""

from __future__ import annotations

import getpass
import os
import socket


def actor() -> str:
    """Return the user and the host, such as "anna@web1"; in a container without names, the user's number."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"
