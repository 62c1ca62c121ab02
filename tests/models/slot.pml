/* Caps: claimers that count what runs, under a lock, and take one more if there is room; settlements that free it; who sleeps is told.
 * sql/schema/16_claim_locks.sql (wake_held, lock_limit) and 20_claim_gated.sql say the same in SQL.
 *
 * A statement sees the rows that were committed when it began (its snapshot), never later ones. running is what is committed.
 * The lock is a row of claim_locks, which the first claim inserts. No other claim sees it before the commit; the key makes a second insert wait.
 *
 *   TOO_MANY  more than CAP run at a moment
 *   ASLEEP    a job waits, a slot is free, and everybody sleeps with nothing on its way
 *
 * holds:
 * holds:  CAP=2 NC=3
 * holds:  DIES
 * wide:   CAP=2 NC=3 JOBS=4 DIES
 * breaks: NO_LOCK     TOO_MANY  two count at the same time
 * breaks: NO_KEY      TOO_MANY  two that find no row for the lock both insert one
 * breaks: EARLY_COUNT TOO_MANY  the count is made by the statement that waits for the lock: it began before the other's claim was there
 * breaks: EARLY_FREE  TOO_MANY  the lock is let go of before the claim is visible
 * breaks: NO_TELL     ASLEEP    who ends a job without claiming again tells nobody
 * breaks: DIES NO_DEATH_TELL  ASLEEP  nor does whoever gives back the job of a dead child, which somebody has cancelled meanwhile
 *
 * A child that settles claims next by itself and tells nobody; one that leaves tells. Poll backstop left out on purpose.
 */
#ifndef NC
#define NC 2              /* children that claim */
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

byte waiting = JOBS;      /* ready jobs under the cap */
byte running = 0;         /* rows of running, committed */
bool locked = false;
bool made = false;        /* the row of the lock is there for all to see */
bool asleep[NC];
bool nudged[NC];
byte gone = 0;            /* children that have left or died */
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
        seen = running;                                   /* a statement of its own */
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
            :: gone < NC - 1 ->                           /* killed: the parent settles the job, cancelled */
                atomic { gone++; running--; done++;
#ifndef NO_DEATH_TELL
                    tell();
#endif
                };
                asleep[me] = true;
                goto out
#endif
            :: gone < NC - 1 ->                           /* told to leave: it settles, and claims no more */
                atomic { gone++; running--; done++ };
#ifndef NO_TELL
                atomic { tell() };
#endif
                goto out
            :: atomic { running--; done++ }               /* settled; the claim comes next */
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
    timeout;                                              /* nothing else can run */
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
