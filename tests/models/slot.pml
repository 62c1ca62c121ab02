/* Concurrency limits. Claims count the running jobs under a lock and take one more if the limit allows it. Settlements free a slot and
 * notify idle workers. sql/schema/16_claim_locks.sql (wake_held, lock_limit) and 20_claim_gated.sql implement this in SQL.
 *
 * A statement sees the rows that were committed when it began (its snapshot), never later ones. `running` counts committed rows.
 * The lock is a row of claim_locks, which the first claim inserts. Other claims see the row only after the commit, but the key makes a
 * second insert wait.
 *
 *   TOO_MANY  more than CAP jobs run at the same time
 *   ASLEEP    a job is ready, the limit has a free slot, and all workers are idle without a pending notification
 *
 * holds:
 * holds:  CAP=2 NC=3
 * holds:  DIES
 * wide:   CAP=2 NC=3 JOBS=4 DIES
 * breaks: NO_LOCK     TOO_MANY  two claims count at the same time
 * breaks: NO_KEY      TOO_MANY  two claims that find no row for the lock both insert one
 * breaks: EARLY_COUNT TOO_MANY  the statement that waits for the lock also counts: its snapshot does not contain the other claim
 * breaks: EARLY_FREE  TOO_MANY  the lock is released before the claim is visible
 * breaks: NO_TELL     ASLEEP    a worker that settles a job and makes no further claim notifies no worker
 * breaks: DIES NO_DEATH_TELL  ASLEEP  the supervisor settles the job of a dead worker, canceled meanwhile, and notifies no worker
 *
 * A worker (`Child`) that settles a job makes the next claim itself and notifies no other worker. A worker that exits notifies the others.
 * The model leaves out polling, so that it shows each missing notification.
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

byte waiting = JOBS;      /* ready jobs of the limit */
byte running = 0;         /* committed rows of running */
bool locked = false;
bool made = false;        /* the row of the lock is committed */
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
        seen = running;                                   /* the snapshot of the statement that waits for the lock */
#endif
#ifndef NO_LOCK
#ifdef NO_KEY
        atomic { !locked || !made -> locked = true }
#else
        atomic { !locked -> locked = true }
#endif
#endif
#ifndef EARLY_COUNT
        seen = running;                                   /* a separate statement with a later snapshot */
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
            :: gone < NC - 1 ->                           /* killed: the supervisor settles the job as canceled */
                atomic { gone++; running--; done++;
#ifndef NO_DEATH_TELL
                    tell();
#endif
                };
                asleep[me] = true;
                goto out
#endif
            :: gone < NC - 1 ->                           /* dismissed: it settles the job and makes no further claim */
                atomic { gone++; running--; done++ };
#ifndef NO_TELL
                atomic { tell() };
#endif
                goto out
            :: atomic { running--; done++ }               /* settled; the next claim follows */
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
    timeout;                                              /* no other process can take a step */
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
