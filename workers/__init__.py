"""The children: whoever does something, does it here; whoever decides, decides in `supervisor`.

Every child begins in `main.py`, with what its `seat.py` holds. How to read it:

* A worker's life: `start.py` (with `loading.py`, its handlers, and `declaration.py`, what is told of them), then `worker.py`, which runs claims:
  they are made by `claimer.py` (`selective.py` with `admission.py` where claims are restricted, `stride.py` where a walk is long), consist of
  `claimed.py`, and are ended through `hand.py` and `settle.py`. It waits in `wake.py` and speaks to the database through `connection.py` over `wire.py`.
  `heap.py` makes it small before it waits.
* One job: `execute.py` runs it under its deadline, `together.py` several in one call, `transactions.py` one whose completion is part of its own
  transaction. `alarm.py` is the timer and the signals that interrupt it, `hooks.py` what is called around it, `tracing.py` its span, `output.py`
  what it prints and logs (`tails.py`: its end, for who looks on), `tidiness.py` with `belongings.py` what it may leave behind. `stacks.py` reads what
  the interpreter writes of where it stands, `flame.py` draws many of these.
* `tables.py` with `table_session.py` is a worker's way to a table that the application owns; `resetter.py`, another kind of child, looks after these.
* `keeper.py` with `clearing.py`, `rollup.py` and `orphans.py` (processes that no supervisor has any more) does what must be done in time, `web/`
  answers HTTP, and serves `page/`, what people look at (`hosts.py`: by which name; `reasons.py`: the words for why a job is where it is).
  `logs.py` is how every process of ours speaks; `processes.py` says which process a number stands for; `points.py` is where a test may take hold
  of one.

What passes between parent and child is on a few screens: `link.py` (the pipes), `board.py` (what a slot's child says, with `ledger.py`, what
became of its jobs, and `tally.py`, what it has counted), `notice.py` (what the parent says to all), made of `cell.py`. A job's payload and its
result never pass there: the child reads and writes them in the database itself, so no pipe can jam on them.

Laws of a child: it leaves by `os._exit` and never through the parent's frames; it never closes what it inherited but by file number;
it installs handlers for signals and never ignores them; when the wake pipe ends and its parent is gone, it stops at once.
"""
