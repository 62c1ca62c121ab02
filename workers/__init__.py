"""The child processes: what they run, and what passes between them and the supervisor.

Every child begins in `main.py` with a `ChildSpec`. `start.py` and `worker.py` are a worker's life.
How to read it, from the top:

* `claim/` reserves jobs, `run/` runs one under its deadline, `settle/` records outcomes under the
  fencing token.
* `stores/` runs jobs in tables that the application owns. `maintenance/` is the maintenance
  process. `web/` serves health and metrics, `dashboard/` the dashboard.
* `gateway/` serves remote workers and producers over gRPC. `uplink/` is the process of `jobherd work`
  that is connected to a gateway, and `remote/` is what its workers use in place of a database.
* `database/` is the session, `inspect/` explains what a job is doing, `process/` is the child as a
  process, `ipc/` is everything that passes between supervisor and child, `job/` is a job's row,
  `system/` is what children ask of the operating system.

A payload or a result never passes between supervisor and child: the child reads and writes them in
the database, so no pipe can fill up with them.

Invariants of a child process: it exits by `os._exit` and never returns through the supervisor's frames. It closes
what it inherited by file number only. It installs handlers for signals and never ignores one,
because an ignored signal stays ignored in the programs that a job starts. When the wake pipe ends
and the supervisor is gone, it stops at once.
"""
