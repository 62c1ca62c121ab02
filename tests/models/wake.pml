/* Which commits must notify a supervisor. A producer checks at its commit whether a supervisor sleeps; a supervisor announces its sleep.
 * sql/schema/05_wake.sql and supervisor/database/notify_mode.py implement this.
 *
 * A job is lost if it is visible and unclaimed, all processes sleep, and no notification is pending. Monitor checks this when no other
 * process can take a step. The model leaves out polling, so that it shows each missing notification.
 *
 *   ASLEEP  a job is ready, and no process is about to claim it
 *
 * holds:
 * holds:  QUEUE
 * breaks: LOOK_FIRST   ASLEEP  a producer checks for sleeping supervisors before it enters the gate
 * breaks: NO_GATE      ASLEEP  a supervisor does not wait for the producers that are committing
 * breaks: NO_CALL      ASLEEP  it waits for them, but wakes no worker afterwards
 * breaks: KEYS_LAST    ASLEEP  it reads which producers are committing before it holds the sleep keys
 * breaks: EARLY_LOOK   ASLEEP  a producer checks when it inserts, not when it commits (a long transaction)
 * breaks: NO_REPORT    ASLEEP  a worker that becomes idle while the supervisor does not listen does not report it
 * breaks: NO_RELOOK    ASLEEP  the supervisor releases the keys without a second check of the idle flag
 *
 * The gate is a lock that a producer holds during its commit (`inside`). QUEUE: the supervisor waits until the gate is empty. This is safe
 * too, but new producers can delay it indefinitely.
 * The model has one supervisor (`Parent`) with one worker (`Child`). Further supervisors add notifications and remove none. Stores are
 * visible at once; fence() in workers/ipc/status_board.py ensures this.
 */
#ifndef NP
#define NP 2              /* producers */
#endif
#ifndef JOBS
#define JOBS 2            /* transactions of each */
#endif

byte inside = 0;          /* bit p: producer p is in the gate */
bool keys = false;        /* the sleep keys are held */
byte visible = 0;         /* jobs committed and not claimed */
byte notes = 0;           /* notifications that the supervisor has not read */
bool idle = false, hearing = false, report = false, nudge = false, asleep = false;
bool moved = false;       /* the epoch in the control block differs from the one that the worker read */
byte gone = 0;            /* producers that have finished */
byte letters = 0;         /* how often the supervisor has released the keys, at most 2 */

#define IN(p) (inside & (1 << p))

proctype Producer(byte p) {
    byte n = 0; bool sleeps;
    do
    :: n < JOBS ->
        /* insert: not visible yet */
#ifdef EARLY_LOOK
        sleeps = keys;
#endif
        skip;
#ifdef LOOK_FIRST
        sleeps = keys;
#endif
        inside = inside | (1 << p);
#ifndef LOOK_FIRST
#ifndef EARLY_LOOK
        sleeps = keys;
#endif
#endif
        visible++;                                /* the commit: the jobs are visible ... */
        atomic { if :: sleeps -> notes++ :: else fi }  /* ... then listening sessions are notified ... */
        inside = inside & ~(1 << p);              /* ... and the locks are released last */
        n++
    :: else -> break
    od;
    gone++
}

/* Claim and run. Before it sleeps, the worker sets its idle flag, then checks the epoch and whether the supervisor listens. */
proctype Child() {
    do
    :: true ->
end_claim:
        moved = false;
        if
        :: d_step { visible > 0 -> visible = 0 } ->   /* a claim that finds jobs; the worker is busy for any time */
            skip
        :: visible == 0 ->                            /* an empty claim */
            idle = true;
            if
            :: moved -> idle = false
            :: else ->
#ifndef NO_REPORT
                if :: !hearing -> report = true :: else fi;
#endif
                asleep = true;
end_sleep:      atomic { nudge -> nudge = false; asleep = false };
                idle = false
            fi
        fi
    od
}

inline call() { moved = true; if :: idle -> nudge = true :: else fi }

proctype Parent() {
    byte seen;
    do
    :: atomic { notes > 0 -> notes-- } -> call()
    :: atomic { !hearing && report -> report = false } ->
        /* it does not listen, and a worker becomes idle: take the keys, wait for the gate, wake the worker */
#ifdef KEYS_LAST
        seen = inside;
        keys = true;
#else
        keys = true;
        seen = inside;
#endif
#ifndef NO_GATE
        do
#ifdef QUEUE
        :: inside == 0 -> break
#else
        :: seen == 0 -> break
        :: seen != 0 -> seen = seen & inside
#endif
        /* it receives notifications while it waits */
        :: atomic { notes > 0 -> notes-- } -> call()
        od;
#endif
        hearing = true;
#ifndef NO_CALL
        call()
#endif
    :: hearing && !idle && letters < 2 ->             /* as far as the supervisor has seen, all workers were busy for a while */
        letters++;
        hearing = false;
#ifndef NO_RELOOK
        if
        :: idle -> hearing = true
        :: else -> keys = false
        fi
#else
        keys = false
#endif
    od
}

/* No other process can take a step: all processes sleep. Then no job may be ready. */
proctype Monitor() {
    atomic { timeout -> assert(!(visible > 0)) }
}

init {
    atomic {
        byte p = 0;
        do :: p < NP -> run Producer(p); p++ :: else -> break od;
        run Child(); run Parent(); run Monitor()
    }
}
