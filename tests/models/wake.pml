/* Who must be notified: producers that look at their commit whether somebody sleeps, and supervisors that fall asleep.
 * sql/schema/05_wake.sql and supervisor/database/notify_mode.py say the same in code.
 *
 * A job is lost when it is visible, unclaimed, and everybody sleeps with nothing on its way: the check in Monitor, which
 * runs when nothing else can. The poll backstop is left out on purpose.
 *
 *   ASLEEP  a job waits and nobody is on the way to it
 *
 * holds:
 * holds:  QUEUE
 * breaks: LOOK_FIRST   ASLEEP  a producer looks before it enters the gate
 * breaks: NO_GATE      ASLEEP  a supervisor does not wait for those who are committing
 * breaks: NO_CALL      ASLEEP  it does, but calls nobody afterwards
 * breaks: KEYS_LAST    ASLEEP  it looks who is committing before it holds the sleep keys
 * breaks: EARLY_LOOK   ASLEEP  a producer looks when it inserts, not when it commits (a long transaction)
 * breaks: NO_REPORT    ASLEEP  a child that goes idle while the parent hears nothing does not say so
 * breaks: NO_RELOOK    ASLEEP  the parent lets go of the keys without a second look at the idle flag
 *
 * QUEUE: the gate is waited for as long as anybody is in it; safe too, but newcomers can keep it shut.
 * One supervisor with one child; further ones add notifications and take none away. Stores are seen at once: fence() in
 * workers/ipc/status_board.py is what makes that so.
 */
#ifndef NP
#define NP 2              /* producers */
#endif
#ifndef JOBS
#define JOBS 2            /* transactions of each */
#endif

byte inside = 0;          /* bit p: producer p holds the gate */
bool keys = false;        /* the sleep keys are held */
byte visible = 0;         /* jobs committed and not claimed */
byte notes = 0;           /* notifications that the parent has not read */
bool idle = false, hearing = false, report = false, nudge = false, asleep = false;
bool moved = false;       /* the epoch on the notice is another than the child has noted */
byte gone = 0;            /* producers that are through */
byte letters = 0;         /* what the supervisor may still do on its own: let go of the keys so many times */

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
        atomic { if :: sleeps -> notes++ :: else fi }  /* ... and who listens is told after that ... */
        inside = inside & ~(1 << p);              /* ... and locks go last */
        n++
    :: else -> break
    od;
    gone++
}

/* Claim, run, and before the sleep: show it, then look at the epoch and at the word. */
proctype Child() {
    do
    :: true ->
end_claim:
        moved = false;
        if
        :: d_step { visible > 0 -> visible = 0 } ->   /* a claim that finds something: busy for as long as it likes */
            skip
        :: visible == 0 ->                            /* an empty one */
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
        /* deaf, and somebody goes idle: keys, gate, call */
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
        /* it goes on hearing while it waits */
        :: atomic { notes > 0 -> notes-- } -> call()
        od;
#endif
        hearing = true;
#ifndef NO_CALL
        call()
#endif
    :: hearing && !idle && letters < 2 ->             /* all have been busy for a while, as far as it has seen */
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

/* Nothing can move any more, or only this: everybody sleeps. Then no job may wait. */
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
