"""The parent: it decides, forks, wakes, kills, explains and replaces; it runs no job and imports none.

Because no user code ever runs here, nothing a handler does can stop the parent from ending it. The laws that keep it so:

* one thread, always: a fork copies only the forking thread, and a lock that another one held stays shut in the child for ever;
* no work in a signal handler: it leaves a byte, the loop does the rest (`signals.py`);
* it never waits: not for the database (`courier.py` speaks libpq without blocking), not for a name server (`spawn.py` asks in a
  short-lived child), not for a full pipe;
* note, plan, do: `fleet.py` is what is known, `plan.py` is what follows from it, both without a system call or a clock; `loop.py` does
  everything else and decides nothing.

How to read it: `kinds.py` (which children there are), `fleet.py`, `plan.py`, then `loop.py` with `spawn.py`, `crew.py`, `signals.py`, `courier.py`,
`hearing.py` (when producers must notify us), `orders.py` (what operators want of it), `lease.py` and `undertaker.py` (what becomes of a dead child's
jobs) as its hands. `bulletin.py` and `facts.py` say what it knows. `postmortem.py` finds the sentence that explains a death, with `oom.py` and
`revision.py`; `sampler.py` asks living children where they are. `settings.py` and `cli/` are the way in from outside.
"""
