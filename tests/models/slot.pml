/* Concurrency limits: workers that count the running jobs under a lock and claim one more if there is room, settlements that free a place,
 * and wakes of sleeping workers. The SQL is in sql/schema/16_claim_locks.sql (wake_held, lock_limit) and 20_claim_gated.sql.
 *
 * A statement sees the rows that were committed when it began (its snapshot), never later ones. `running` is the committed number.
 * The lock is a row of claim_locks, which the first claim inserts. No other claim sees it before the commit. The key makes a second insert wait.
 *
 *   TOO_MANY  more than CAP jobs run at the same time
 *   ASLEEP    a job waits, a place is free, and all workers sleep with no wake on its way
 *
 * holds:
 * holds:  CAP=2 NC=3
 * holds:  DIES
 * wide:   CAP=2 NC=3 JOBS=4 DIES
 * breaks: NO_LOCK     TOO_MANY  two claims count at the same time
 * breaks: NO_KEY      TOO_MANY  two claims that find no row for the lock both insert one
 * breaks: EARLY_COUNT TOO_MANY  the count is made by the statement that waits for the lock: it began before the other's claim was there
 * breaks: EARLY_FREE  TOO_MANY  the lock is released before the claim is visible
 * breaks: NO_TELL     ASLEEP    a worker that ends a job and does not claim again notifies no other
 * breaks: DIES NO_DEATH_TELL  ASLEEP  the supervisor notifies no worker after it ends the canceled job of a dead worker
 *
 * A worker that settles claims next and notifies no other; a worker that exits notifies. The poll is not modelled on purpose.
 */
#ifndef NC
#define NC 2              /* workers that claim */
#endif
#ifndef CAP
#define CAP 1
#endif
#ifndef JOBS
#define JOBS 3
#endif

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define TOO_MANY 1
#define ASLEEP 2

byte waiting = JOBS;      /* ready jobs under the limit */
byte running = 0;         /* running jobs, committed */
bool locked = false;
bool made = false;        /* the row of the lock is visible to all */
bool asleep[NC];
bool nudged[NC];
byte gone = 0;            /* workers that have exited or died */
byte done = 0;

inline tell() {
    byte c_;
    c_ = 0;
    do
    :: c_ < NC -> nudged[c_] = true; c_++
    :: else -> c_ = 0; break
    od
}

proctype Child(byte me) {
    byte seen; bool took;
    do
    :: true ->
        /* claim */
#ifdef EARLY_COUNT
        seen = running;                                   /* the snapshot of the statement that is about to wait */
#endif
#ifndef NO_LOCK
#ifdef NO_KEY
        atomic { !locked || !made -> locked = true }
#else
        atomic { !locked -> locked = true }
#endif
#endif
#ifndef EARLY_COUNT
        seen = running;                                   /* a separate statement */
#endif
        took = false;
        if
        :: seen < CAP ->
#ifdef EARLY_FREE
            locked = false;
#endif
            atomic {                                      /* the commit */
                if
                :: waiting > 0 -> waiting--; running++; took = true
                :: else
                fi;
                require(TOO_MANY, running <= CAP)
            }
        :: else
        fi;
#ifndef NO_LOCK
        atomic { locked = false; made = true }
#endif
        if
        :: took ->
            if
#ifdef DIES
            :: gone < NC - 1 ->                           /* killed: the supervisor settles the job, cancelled */
                atomic { gone++; running--; done++;
#ifndef NO_DEATH_TELL
                    tell();
#endif
                };
                asleep[me] = true;
                goto out
#endif
            :: gone < NC - 1 ->                           /* drained: it settles, and claims no more */
                atomic { gone++; running--; done++ };
#ifndef NO_TELL
                atomic { tell() };
#endif
                goto out
            :: atomic { running--; done++ }               /* settled, then the next claim */
            fi
        :: else ->
            atomic { asleep[me] = true };
            atomic { nudged[me] || done == JOBS -> asleep[me] = false; nudged[me] = false }
            if
            :: done == JOBS -> goto out
            :: else
            fi
        fi
    od;
out: skip
}

active proctype Monitor() {
    timeout;                                              /* no other process can run */
    require(ASLEEP, done == JOBS)
}

init {
    byte i = 0;
    atomic {
        do
        :: i < NC -> run Child(i); i++
        :: else -> break
        od
    }
}
