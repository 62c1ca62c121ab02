"""`jobherd top`: the fleet on one screen of a terminal, live, with a few keys to act.

`watch.py` queries the database and runs actions. `panels.py` defines what is shown and in which
order. `view.py` holds what the user has chosen. `frame.py` draws exactly the lines and columns of
the terminal, and `screen.py` controls the terminal. Like every other command, `top` is only a
client of the database: it never reads the whole backlog, and no part of it runs inside a
supervisor. Only `frame.py` and `screen.py` need rich. The text they show comes from jobs, so its
control characters are made visible first.
"""

from jobherd.supervisor.cli.top.command import COMMANDS

__all__ = ["COMMANDS"]
