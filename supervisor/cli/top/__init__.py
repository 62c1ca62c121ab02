"""`jobherd top`: the whole fleet on one screen of a terminal, live, with a few keys to act.

`watch.py` asks the database and carries out what was decided, `panels.py` says what is shown of it and in which order, `view.py` holds
what the person at the keys has chosen, `frame.py` draws it into exactly the lines and columns there are, and `screen.py` has the terminal.
It is a guest in the database like every other command: it never reads the backlog through, and nothing of it runs inside a supervisor.
Only `frame.py` and `screen.py` need rich; what they show comes from jobs, so its control characters are made visible first.
"""

from jobherd.supervisor.cli.top.command import COMMANDS

__all__ = ["COMMANDS"]
