/* When to notify: producers that check at their commit whether a worker sleeps, and supervisors whose workers become idle.
 * The code is in sql/schema/05_wake.sql and supervisor/database/notify_mode.py.
 *
 * A job is lost if it is visible and unclaimed while all processes sleep with no notification on its way. Monitor checks this
 * when no other process can run. The poll is not modelled on purpose.
 *
 *   ASLEEP  a job waits and no process is about to claim it
 *
 * holds:
 * holds:  QUEUE
 * breaks: LOOK_FIRST   ASLEEP  a producer checks before it enters the gate
 * breaks: NO_GATE      ASLEEP  a supervisor does not wait for committing producers
 * breaks: NO_CALL      ASLEEP  a supervisor waits for them, but wakes no worker afterwards
 * breaks: KEYS_LAST    ASLEEP  a supervisor reads the committing producers before it holds the sleep keys
 * breaks: EARLY_LOOK   ASLEEP  a producer checks when it inserts, not when it commits (a long transaction)
 * breaks: NO_REPORT    ASLEEP  a worker that becomes idle while the supervisor receives no notifications does not report it
 * breaks: NO_RELOOK    ASLEEP  the supervisor releases the keys without a second check of the idle flag
 *
 * QUEUE: the supervisor waits until no producer is in the gate. This is safe too, but new producers can keep it waiting.
 * One supervisor with one worker: others would only add notifications. Stores are visible at once, which fence() in
 * workers/ipc/status_board.py guarantees.
 */
#ifndef NP
#define NP 2              /* producers */
#endif
#ifndef JOBS
#define JOBS 2            /* transactions of each producer */
#endif

byte inside = 0;          /* bit p: producer p holds the gate */
bool keys = false;        /* the sleep keys are held */
byte visible = 0;         /* jobs committed and not claimed */
byte notes = 0;           /* notifications that the supervisor has not read */
bool idle = false, hearing = false, report = false, nudge = false, asleep = false;
bool moved = false;       /* the epoch in the control block differs from the one that the worker has stored */
byte gone = 0;            /* producers that have finished */
byte letters = 0;         /* how often the supervisor has released the keys without a notification */

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
        visible++;                                /* the commit: the jobs are there ... */
        atomic { if :: sleeps -> notes++ :: else fi }  /* ... and listeners are notified after that ... */
        inside = inside & ~(1 << p);              /* ... and locks are released last */
        n++
    :: else -> break
    od;
    gone++
}

/* Claim, run, and before the sleep: set the idle flag, then read the epoch and `hearing`. */
proctype Child() {
    do
    :: true ->
end_claim:
        moved = false;
        if
        :: d_step { visible > 0 -> visible = 0 } ->   /* a claim that finds jobs: busy for any time */
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
        /* it receives no notifications and a worker becomes idle: keys, gate, wake */
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
        /* it still receives notifications while it waits */
        :: atomic { notes > 0 -> notes-- } -> call()
        od;
#endif
        hearing = true;
#ifndef NO_CALL
        call()
#endif
    :: hearing && !idle && letters < 2 ->             /* all workers have been busy for some time, as far as it has read */
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

/* No other process can make a step, so all sleep. Then no job may wait. */
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
