"""`jobherd doctor`: finds what keeps jobs waiting, with a fix for each finding.

`command.py` queries the database and prints; the other files judge what it found: `server.py`,
`vacuum.py`, `schema.py`, `fleet.py` and `backlog.py`. The command changes nothing.
"""

from jobherd.supervisor.cli.doctor.command import COMMANDS

__all__ = ["COMMANDS"]
