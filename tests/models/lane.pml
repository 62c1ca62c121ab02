/* Limits of each partition: workers that go through the lanes, try the lock of a lane, count its running jobs and claim one, and settlements
 * that free a place. The SQL is in sql/schema/18_lane_picks.sql (pick_below, pick_from_lane), 17_lane_limits.sql (count_lane) and
 * 20_claim_gated.sql (the notifications).
 *
 * A claim never waits for the lock of a lane: it skips the lane. If it then finds no job, it searches again soon. A worker commits its settlement
 * with its next claim. A claim decides before its commit whether to notify idle workers. They are notified at the commit.
 *
 *   TOO_MANY  more than EACH jobs of a lane run at the same time
 *   ASLEEP    a job waits, its lane has room, and a worker sleeps with no wake on its way while the others run long jobs
 *
 * holds:
 * holds:  EACH=2
 * wide:   NC=3
 * holds:  DIES
 * wide:   NC=3 EACH=2 JOBS=3 LATER=2 DIES
 * breaks: NO_LOCK     TOO_MANY  two count at the same time
 * breaks: EARLY_COUNT TOO_MANY  the count is made before the lock is acquired
 * breaks: EARLY_FREE  TOO_MANY  the lock is released before the claim is visible
 * breaks: NO_SOON EACH=2 NC=3 JOBS=3 LATER=0 ASLEEP  a worker that skipped a locked lane sleeps; a job of that lane ended after the count
 * breaks: NO_LEFT NC=3 ASLEEP  a worker that continues with another lane leaves a free place and notifies no other
 * breaks: NO_NONE     ASLEEP    a worker that finds no job after a settlement notifies no other
 * breaks: DIES NO_DEATH_TELL ASLEEP  the supervisor that returns the job of a dead worker notifies no worker
 *
 * The poll is not modelled on purpose.
 */
#ifndef NC
#define NC 2              /* workers */
#endif
#ifndef EACH
#define EACH 1
#endif
#ifndef JOBS
#define JOBS 2            /* of the first lane */
#endif
#ifndef LATER
#define LATER 1           /* of the second lane, enqueued later */
#endif

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define TOO_MANY 1
#define ASLEEP 2
#define NONE 2            /* no lane */
#define STARTABLE ((waiting[0] > 0 && running[0] < EACH) || (waiting[1] > 0 && running[1] < EACH))

byte waiting[2];          /* ready jobs, committed */
byte running[2];          /* committed */
byte owner[2];            /* the worker that holds the lock of each lane, from 1 */
bool asleep[NC];
byte sleeping = 0;        /* workers that are idle */
bool nudged[NC];
byte gone = 0;
byte done = 0;            /* jobs that have ended */

inline tell() {           /* in an atomic */
    byte c_;
    c_ = 0;
    do
    :: c_ < NC -> nudged[c_] = true; c_++
    :: else -> c_ = 0; break
    od
}

inline wake_one() {       /* in an atomic: one idle worker; a worker that is about to sleep sees a new epoch and claims again */
    byte w_; bool woken_;
    w_ = 0; woken_ = false;
    do
    :: w_ < NC && asleep[w_] && !nudged[w_] && !woken_ -> nudged[w_] = true; woken_ = true; w_++
    :: w_ < NC && asleep[w_] && (nudged[w_] || woken_) -> w_++
    :: w_ < NC && !asleep[w_] -> nudged[w_] = true; w_++
    :: w_ == NC -> break
    od;
    w_ = 0; woken_ = false
}

inline free_locks() {     /* in an atomic */
    if :: owner[0] == me + 1 -> owner[0] = 0 :: else fi;
    if :: owner[1] == me + 1 -> owner[1] = 0 :: else fi
}

inline count(lane_) {     /* a transaction sees its own settlement */
    seen = running[lane_] - (had == lane_ -> 1 : 0)
}

proctype Worker(byte me) {
    byte seen; byte lane; byte step;
    byte had = NONE;      /* the lane of the settled job, which the next claim commits */
    bool took; bool passed; bool tells; bool locked;
    do
    :: true ->
        step = 0; took = false; passed = false; tells = false;
        if :: lane = 0 :: lane = 1 fi;                     /* the lane at which its last claim ended */
        do
        :: step < 2 && !took ->
            lane = 1 - lane; step++;
#ifdef EARLY_COUNT
            count(lane);
#endif
#ifdef NO_LOCK
            locked = true;
#else
            atomic { locked = (owner[lane] == 0 || owner[lane] == me + 1); if :: locked -> owner[lane] = me + 1 :: else fi };
#endif
            if
            :: locked ->
                atomic {
#ifndef EARLY_COUNT
                    count(lane);                           /* a separate statement */
#endif
                    took = (seen < EACH && waiting[lane] > 0)
                };
#ifdef EARLY_FREE
                atomic { free_locks() }
#endif
            :: else -> passed = true
            fi
        :: else -> break
        od;
        atomic {                                           /* its view before the commit */
            if
            :: took ->
                count(lane);
                tells = (seen + 1 < EACH && waiting[lane] > 1);
#ifndef NO_LEFT
                if
                :: had != NONE && had != lane -> count(had); tells = tells || (seen < EACH && waiting[had] > 0)
                :: else
                fi
#endif
            :: else ->
#ifndef NO_NONE
                tells = (had != NONE)
#endif
            fi
        };
        atomic {                                           /* the commit */
            if :: had != NONE -> running[had]--; done++ :: else fi;
            had = NONE;
            if
            :: took && waiting[lane] > 0 -> waiting[lane]--; running[lane]++
            :: else -> took = false                        /* its row was locked by another claim */
            fi;
            require(TOO_MANY, running[0] <= EACH && running[1] <= EACH);
            free_locks();
            if :: tells -> tell() :: else fi
        };
        if
        :: took ->
            if
#ifdef DIES
            :: atomic { gone < NC - 1 ->                   /* killed: the supervisor settles the job, cancelled */
                    gone++; running[lane]--; done++;
#ifndef NO_DEATH_TELL
                    tell()
#endif
                };
                goto out
#endif
            :: true                                        /* a short job, then the next claim */
            :: true -> (sleeping == 0 || !STARTABLE)       /* a job that takes as long as a worker is idle and could run another */
            fi;
            had = lane
#ifndef NO_SOON
        :: !took && passed && done < JOBS + LATER -> skip      /* it searches again soon */
#endif
        :: else ->
            atomic { sleeping++; asleep[me] = true };
            atomic { nudged[me] || done == JOBS + LATER -> sleeping--; asleep[me] = false; nudged[me] = false };
            if :: done == JOBS + LATER -> goto out :: else fi
        fi
    od;
out: skip
}

active proctype Producer() {
    byte added = 0;
    do
    :: added < LATER -> atomic { added++; waiting[1]++; wake_one() }
    :: else -> break
    od
}

active proctype Monitor() {
    timeout;                                               /* no other process can run */
    require(ASLEEP, done == JOBS + LATER)
}

init {
    byte i = 0;
    atomic {
        waiting[0] = JOBS;
        do
        :: i < NC -> run Worker(i); i++
        :: else -> break
        od
    }
}
