"""The parent: it decides, forks, wakes, kills, explains and replaces; it runs no job and imports none.

Because no user code ever runs here, nothing a handler does can stop the parent from ending it. The laws that keep it so:

* one thread, always: a fork copies only the forking thread, and a lock that another one held stays shut in the child for ever;
* no work in a signal handler: it leaves a byte, the loop does the rest (`signals.py`);
* it never waits: not for the database (`courier.py` speaks libpq without blocking), not for a name server (`spawn.py` asks in a
  short-lived child), not for a full pipe;
* note, plan, do: `fleet.py` is what is known, `plan.py` is what follows from it, both without a system call or a clock; `loop.py` does
  everything else and decides nothing.

How to read it: `kinds.py` (which children there are), `slot.py` (what can be known of one), `fleet.py` (what is known of all), `limits.py` (what the
settings ask), `plan.py`, then `loop.py` with its hands:

* on processes: `crew.py`, with `spawn.py` (the only place that forks), `drain.py` (a child's output), `strays.py` (what the dead leave behind);
* on the database: `courier.py` (the session), `registration.py` with `lease.py` (our place in it), `hearing.py` (when producers must notify us),
  `undertaker.py` (what becomes of a dead child's jobs), `until_empty.py` (whether anything is left), `orders.py` (what operators want of it);
* on the world: `signals.py`, `voice.py` (the log, whether anybody reads it or not), `lateness.py` (how late the loop is), `manager.py`
  (systemd), `bulletin.py` and `facts.py` (what is said of us all). `postmortem.py` finds the sentence that explains a death, with `oom.py`, `growth.py`
  (where a job stood as its memory grew) and `revision.py`; `sampler.py`, with `tasks.py`, asks living children where they are.

The way in from outside is `cli/` with `settings.py` (`settings_*.py`: how they are read, where they come from, who is told); `checkup.py` finds
the words for `doctor`, `top/` draws what `top` shows. `embedded.py` (`embedded_*.py`) is the PostgreSQL that comes along. `version.py` is the version.
"""
