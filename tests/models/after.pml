/* Jobs that wait for other jobs: a producer, a worker for each upstream job, a user who runs one upstream job again and deletes the other,
 * maintenance processes that mark upstream jobs, and resolvers that apply the ends of upstream jobs to the blocked job.
 * sql/schema/28_after.sql and 29_resolve.sql implement this.
 *
 * A blocked job has an edge to each upstream job. The transaction that ends a marked upstream job also inserts a row into `ends`.
 * The producer marks no job. After its commit, a maintenance process reads in one snapshot where the upstream job is. It marks a ready job,
 * inserts the row in `ends` for a finished or deleted job, and checks a running job again later. A resolver takes a row of `ends`, locks the
 * blocked job, and decides in a statement that begins after it has the lock.
 *
 * Proved within these bounds:
 *   EARLY  the blocked job becomes ready although an upstream job has not ended
 *   TWICE  the blocked job becomes ready twice
 *   LOST   all upstream jobs have ended, and the blocked job does not become ready
 *
 * holds:
 * wide:   NR=3
 * wide:   RETRIES=2
 * breaks: NO_ROW_LOCK    LOST   the blocked job is not locked: each of two resolvers sees the other's edge as unresolved
 * breaks: EARLY_LOOK     LOST   the decision uses the snapshot from before the lock
 * breaks: NO_STATE       TWICE  an edge does not store that it is resolved, and its job ends again
 * breaks: TWO_SNAPSHOTS  EARLY  the tables are read one after the other: a job that moves seems to be deleted
 * breaks: MARKS_BLINDLY  LOST   the edge counts as marked although the upstream job moved before it was marked
 * breaks: NO_LATER_LOOK  LOST   an upstream job that finished before the commit is not searched for in the history
 *
 * Not modeled: the end that an edge requires (completed, failed), and pages of many edges.
 */
#ifndef NR
#define NR 2              /* resolvers */
#endif
#ifndef RETRIES
#define RETRIES 1         /* by hand, of one upstream job */
#endif
#define JOBS 2

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define EARLY 1
#define TWICE 2
#define LOST 3

#define READY 0
#define RUNNING 1
#define OVER 2
#define DELETED 3

byte place[JOBS];
bool mark[JOBS];          /* (extras).flow is not null; it moves with the job */
bool ended[JOBS];         /* it has ended at least once */
bool outbox[JOBS];        /* a row in ends */
bool taken[JOBS];         /* a resolver has locked this row of ends */
bool committed = false;   /* the blocked job and its edges */
bool marked[JOBS];        /* the edge: its upstream job is marked, or the end of that job is known */
bool resolved[JOBS];      /* the edge has a state */
bool locked = false;      /* the row of the blocked job */
byte released = 0;
byte retries = RETRIES;
bool deleted = false;

inline end(j) {           /* the trigger on history; called in an atomic */
    place[j] = OVER; ended[j] = true;
    if :: mark[j] -> outbox[j] = true :: else fi
}

active proctype Producer() {
    committed = true
}

proctype Worker(byte j) {
    bool again = true;
    do
    :: atomic { place[j] == READY -> place[j] = RUNNING };
       if
       :: atomic { end(j) }
       :: atomic { again -> again = false; place[j] = READY }         /* a retry */
       fi
    :: timeout -> break
    od
}

active proctype User() {
    do
    :: atomic { retries > 0 && place[0] == OVER -> retries--; place[0] = READY }
    :: atomic { !deleted && place[1] == OVER -> deleted = true; place[1] = DELETED }
    :: timeout -> break
    od
}

active proctype Marker() {
    byte j; byte saw;
    do
    :: atomic { committed && !marked[0] -> j = 0 };
       goto look
    :: atomic { committed && !marked[1] -> j = 1 };
look:
#ifdef TWO_SNAPSHOTS
       saw = DELETED;
       if :: atomic { place[j] == OVER -> saw = OVER } :: else -> skip fi;
       if :: atomic { place[j] == RUNNING -> saw = RUNNING } :: else -> skip fi;
       if :: atomic { place[j] == READY -> saw = READY } :: else -> skip fi;
#else
       saw = place[j];
#endif
       if
       :: saw == READY ->                                             /* UPDATE ready */
            atomic {
                if
                :: place[j] == READY -> mark[j] = true; marked[j] = true
                :: else ->
#ifdef MARKS_BLINDLY
                    marked[j] = true
#else
                    skip
#endif
                fi
            }
       :: saw == RUNNING -> atomic { if :: place[j] == RUNNING && mark[j] -> marked[j] = true :: else fi }
       :: saw == OVER || saw == DELETED ->
#ifdef NO_LATER_LOOK
            atomic { marked[j] = true }
#else
            atomic { outbox[j] = true; marked[j] = true }
#endif
       fi
    :: timeout -> break
    od
}

proctype Resolver() {
    byte j; bool other;
    do
    :: atomic { outbox[0] && !taken[0] -> taken[0] = true; j = 0 };
       goto found
    :: atomic { outbox[1] && !taken[1] -> taken[1] = true; j = 1 };
found:
       if
#ifdef NO_STATE
       :: committed ->
#else
       :: committed && !resolved[j] ->
#endif
#ifdef EARLY_LOOK
            other = resolved[1 - j];
#endif
#ifndef NO_ROW_LOCK
            atomic { !locked -> locked = true };
#endif
#ifndef EARLY_LOOK
            other = resolved[1 - j];
#endif
            atomic {
                if
#ifndef NO_STATE
                :: resolved[j]                                        /* another resolver was faster */
#endif
                :: else ->
                    resolved[j] = true;
                    if
                    :: other ->
                        released++;
                        require(TWICE, released == 1);
                        require(EARLY, ended[0] && ended[1])
                    :: else
                    fi
                fi;
                locked = false; outbox[j] = false; taken[j] = false
            }
       :: else -> atomic { outbox[j] = false; taken[j] = false }
       fi;
       other = false
    :: timeout -> break
    od
}

active proctype Monitor() {
    timeout;
    require(LOST, !committed || released > 0 || !ended[0] || !ended[1])
}

init {
    byte i = 0;
    atomic {
        run Worker(0); run Worker(1);
        do
        :: i < NR -> run Resolver(); i++
        :: else -> break
        od
    }
}
