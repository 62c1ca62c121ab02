/* Concurrency limits of each partition. A claim visits lanes, tries the lock of each lane, counts the running jobs of the lane and takes one
 * job. A settlement frees a slot of the lane. A lane holds the jobs of one partition. sql/schema/18_lane_picks.sql (pick_below,
 * pick_from_lane), 17_lane_limits.sql (count_lane) and 20_claim_gated.sql (the notifications) implement this in SQL.
 *
 * A claim never waits for the lock of a lane: it skips the lane. If it then finds no job, it searches again soon. A worker commits a
 * settlement together with its next claim. A claim decides before its commit whether it notifies idle workers; the commit sends the
 * notification.
 *
 *   TOO_MANY  more than EACH jobs of a lane run at the same time
 *   ASLEEP    a job is ready, its lane has a free slot, and a worker is idle without a pending notification while the others run long jobs
 *
 * holds:
 * holds:  EACH=2
 * wide:   NC=3
 * holds:  DIES
 * wide:   NC=3 EACH=2 JOBS=3 LATER=2 DIES
 * breaks: NO_LOCK     TOO_MANY  two claims count at the same time
 * breaks: EARLY_COUNT TOO_MANY  the count is made before the lock is acquired
 * breaks: EARLY_FREE  TOO_MANY  the lock is released before the claim is visible
 * breaks: NO_SOON EACH=2 NC=3 JOBS=3 LATER=0 ASLEEP  a worker that skipped a locked lane becomes idle; a job of it ended after the other's count
 * breaks: NO_LEFT NC=3 ASLEEP  a worker that moves to another lane leaves a free slot and notifies no other worker
 * breaks: NO_NONE     ASLEEP    a worker that finds no job after a settlement notifies no other worker
 * breaks: DIES NO_DEATH_TELL ASLEEP  the supervisor settles the job of a dead worker and notifies no worker
 *
 * The model leaves out polling, so that it shows each missing notification.
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
byte owner[2];            /* the worker that holds the lock of each lane, from 1; 0: none */
bool asleep[NC];
byte sleeping = 0;        /* workers that are idle */
bool nudged[NC];
byte gone = 0;
byte done = 0;            /* jobs that have ended */

inline tell() {           /* called in an atomic */
    byte c_;
    c_ = 0;
    do
    :: c_ < NC -> nudged[c_] = true; c_++
    :: else -> c_ = 0; break
    od
}

inline wake_one() {       /* called in an atomic; wakes one idle worker; busy workers see a new epoch and claim once more before they sleep */
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

inline free_locks() {     /* called in an atomic */
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
        if :: lane = 0 :: lane = 1 fi;                     /* any lane: the one where its last claim ended */
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
        atomic {                                           /* what it sees before the commit */
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
            :: atomic { gone < NC - 1 ->                   /* killed: the supervisor settles the job as canceled */
                    gone++; running[lane]--; done++;
#ifndef NO_DEATH_TELL
                    tell()
#endif
                };
                goto out
#endif
            :: true                                        /* a short job; the claim comes next */
            :: true -> (sleeping == 0 || !STARTABLE)       /* a job that runs as long as an idle worker could start another */
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
    timeout;                                               /* no other process can take a step */
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
