/* A job that spawns child jobs and waits for all of them: workers that run it and die anywhere, a supervisor that reclaims it, child jobs
 * that end at any time, a maintenance process that ends their flow, others that wake the job, and a user who runs the job early.
 * sql/queries/steps/ and workers/run/child_jobs.py implement this.
 *
 * One commit under the fence enqueues the child jobs and records the step. The worker checks whether the flow of the child jobs has ended.
 * If not, one commit writes the wait and suspends the job. The commit that ends the flow also inserts a row into signals. Maintenance
 * processes read this row after that commit and mark the waits for the flow as new. They lock a new wait, and then check the flow.
 * Notifications are not in the model: a process may check at any time, so all notifications may be lost.
 *
 * Proved within these bounds:
 *   LOST   the child jobs have ended, and the job is not run again
 *   TWICE  the child jobs are enqueued twice
 *   EARLY  the job continues before all child jobs have ended
 *
 * holds:
 * wide:   NW=3
 * breaks: NO_OUTBOX     LOST   the commit that ends the flow searches for waits, and inserts no row
 * breaks: NO_NEW_WAITS  LOST   only ends are processed, not new waits: child jobs end between the check and the suspension
 * breaks: WAIT_FIRST    LOST   the wait is committed before the job is suspended
 * breaks: SKIPS_LOCKED  LOST   an end counts as matched although the wait is locked
 * breaks: SPAWN_FIRST   TWICE  the child jobs are committed before the record
 * breaks: NO_FENCE      TWICE  the record does not check whether the claim still exists
 * breaks: ANY_END       EARLY  the end of one child job wakes the job, and the job does not check the flow
 *
 * Not modeled: how the last child job ends the flow (resolve.pml), and signals (signal.pml).
 */
#ifndef NW
#define NW 2              /* attempts at the same time, including frozen ones */
#endif
#ifndef NM
#define NM 2              /* maintenance processes that wake jobs */
#endif
#define CHILDREN 2

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define LOST 1
#define TWICE 2
#define EARLY 3

#define READY 0
#define RUNNING 1
#define SUSPENDED 2
#define OVER 3

byte place = READY;
byte token = 0;           /* of the claim; it increases */
bool orphan = false;      /* the worker of the claim is dead */
byte takes = 1;           /* how often the supervisor reclaims the job of a live worker */
byte early = 1;           /* how often the user runs the job */
bool recorded = false;    /* the record of the step that spawns child jobs */
byte flows = 0;
byte live = 0;            /* child jobs that have not ended */
bool ended = false;       /* the flow has ended */
bool sent = false;        /* the row in signals, committed with the end of the flow */
bool matched = false;
bool held = false;        /* the row in signals is locked */
bool wait = false;        /* the row in waits */
bool looked = false;
bool locked = false;      /* the row in waits is locked */

#define mine (place == RUNNING && token == own)

proctype Worker() {
    byte own = 0; bool has; bool over;
    do
    :: atomic { place == READY -> place = RUNNING; token++; own = token };
       atomic { has = recorded };                                     /* list_steps */
       if
       :: !has ->
            if
            :: skip
            :: goto dead
            fi;
#ifdef SPAWN_FIRST
            atomic { if :: mine -> flows++; live = CHILDREN; require(TWICE, flows == 1) :: else -> goto lost fi };
            if
            :: atomic { recorded = true }
            :: goto dead
            fi
#else
            atomic {
                if
#ifdef NO_FENCE
                :: true ->
#else
                :: mine ->
#endif
                    flows++; live = CHILDREN; recorded = true; require(TWICE, flows == 1)
                :: !mine -> goto lost
                fi
            }
#endif
       :: else
       fi;
       if
       :: skip
       :: goto dead
       fi;
#ifdef ANY_END
       atomic { over = live < CHILDREN };
#else
       atomic { over = ended };                                       /* find_children */
#endif
       if
       :: over -> atomic { if :: mine && !locked -> require(EARLY, live == 0); wait = false; place = OVER :: !mine fi }
       :: else ->
#ifdef WAIT_FIRST
            atomic { if :: mine && !locked -> wait = true; looked = false :: !mine -> goto lost fi };
            atomic { if :: mine -> place = SUSPENDED :: else fi }
#else
            atomic { if :: mine && !locked -> wait = true; looked = false; place = SUSPENDED :: !mine fi }
#endif
       fi;
lost:  atomic { own = 0; has = false; over = false }
    :: timeout -> goto gone
    od;
dead: atomic { if :: mine -> orphan = true :: else fi };
gone: skip
}

active proctype Resolver() {
    byte i; bool there;
    do
    :: atomic { live > 0 && !ended -> live-- };                       /* a child job ends */
       if
       :: live == 0 ->
#ifdef NO_OUTBOX
            atomic { there = wait };                                  /* the snapshot of the statement */
            atomic { !locked; if :: there && wait -> looked = false :: else fi; ended = true }
#else
            atomic { ended = true; sent = true }
#endif
       :: else
       fi
    :: timeout -> break
    od
}

active proctype User() {
    do
    :: atomic { early > 0 && place == SUSPENDED -> early--; place = READY }
    :: timeout -> break
    od
}

proctype Maintenance() {
    bool own; bool busy; bool found;
    do
    :: atomic { sent && !matched && !held -> held = true };
       atomic { if :: wait && !locked -> locked = true; own = true :: else fi };
#ifndef SKIPS_LOCKED
       atomic { busy = wait && !own };
#endif
       atomic {
           if :: !busy -> matched = true :: else fi;
           if :: own -> looked = false; locked = false :: else fi;
           held = false; own = false; busy = false
       }
#ifndef NO_NEW_WAITS
    :: atomic { wait && !looked && !locked -> locked = true };
       atomic { found = ended };
       atomic {
           if
           :: found && place == SUSPENDED -> place = READY; wait = false
           :: else -> looked = true
           fi;
           locked = false; found = false
       }
#endif
    :: timeout -> break
    od
}

active proctype Supervisor() {
    do
    :: atomic { takes > 0 && place == RUNNING -> takes--; orphan = false; place = READY }
    :: atomic { orphan -> orphan = false; place = READY }
    :: timeout -> break
    od
}

active proctype Monitor() {
    timeout;
    require(LOST, !(ended && place == SUSPENDED))
}

init {
    byte i = 0;
    atomic {
        do
        :: i < NW -> run Worker(); i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NM -> run Maintenance(); i++
        :: else -> break
        od
    }
}
