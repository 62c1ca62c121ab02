"""`jobherd bench`: measures this database with a real supervisor, in a scratch schema.

`command.py` is the command, `scratch.py` the schema, `supervised.py` the supervisor, and
`measure.py` measures.
"""

from jobherd.supervisor.cli.bench.command import COMMANDS

__all__ = ["COMMANDS"]
