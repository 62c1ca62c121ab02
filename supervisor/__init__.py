"""The supervisor: the process that forks, wakes, stops and replaces the child processes.

It runs no job and imports no handler. So nothing that a handler does can keep the supervisor from
killing it. Invariants:

* It has one thread. A fork copies only the calling thread, so a lock held by another thread would
  stay locked in the child.
* A signal handler does no work. It writes a byte, and the loop does the rest
  (`process/signals.py`).
* It never waits: not for the database (`database/connection.py` speaks libpq without blocking), not
  for a name server (a short-lived child resolves names), not for a full pipe.
* Record, plan, act: `policy/` stores facts and plans actions without a system call or a clock.
  `loop.py` does everything else and decides nothing.

How to read it: `policy/` (`child_kinds`, `slot`, `slot_table`, `limits`, `plan`), then `assembly.py`,
which builds a supervisor of its parts, and `loop.py`. Then come the parts:

* `events/` turns signals, notifications and fleet commands into facts in the slot table.
* `process/` forks and signals children and reads their output.
* `database/` holds the session, the lease, notifications and fleet commands.
* `crash/` finds out why a child died, settles its job and releases the others.
* `observe/` publishes metrics, the fleet report, systemd messages and the log.
* `uplink/` has the place of `database/` in the supervisor of `jobherd work`, which `remote_assembly.py` builds.
* `cli/` is the command line, `settings/` the settings, `embedded/` the PostgreSQL that Jobherd
  starts itself. `version.py` is the version.
"""
