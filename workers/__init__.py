"""The children: whoever does something, does it here; whoever decides, decides in `supervisor`.

Every child begins in `main.py`. A worker's life is `worker.py`: boot, READY, then wait, claim, run, settle until dismissed. Its
neighbours each hold one part of it: `wake.py` where it waits, `connection.py` the database session that comes back by itself,
`execute.py` one job under its deadline, `transactions.py` the job whose completion is part of its own transaction, `output.py` what a job
prints and logs, `alarm.py` the timer and the signals that interrupt it, `tidiness.py` what a job may leave behind, `settle.py` what is
written of it. `stacks.py` reads what the interpreter writes of a process's stacks, `flame.py` draws many of them. `tables.py` with
`table_session.py` is its way to a table that the application owns. `keeper.py`, `resetter.py` (for those tables) and `web/` are the other
kinds of children.

What passes between parent and child is on two screens: `link.py` (the pipes) and `board.py` (the shared page). A job's payload and
its result never pass there: the child reads and writes them in the database itself, so no pipe can jam on them.

Laws of a child: it leaves by `os._exit` and never through the parent's frames; it never closes what it inherited but by file number;
it installs handlers for signals and never ignores them; when the wake pipe ends and its parent is gone, it stops at once.
"""
