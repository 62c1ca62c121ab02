"""Names the person who runs a command, for the audit log."""

from __future__ import annotations

import getpass
import os
import socket


def actor() -> str:
    """Return the user and the host, such as "anna@web1".

    In a container without user names, return the number of the user, such as "uid 1000@web1".
    """
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"
