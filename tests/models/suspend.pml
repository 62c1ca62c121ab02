/* A job with a step and a sleep: workers run it and die or freeze anywhere, and a supervisor reclaims and releases it.
 * workers/run/steps.py and sql/queries/steps/ implement this.
 *
 * An attempt reads the records, executes the step unless it is recorded, and records it under the fence. Then it suspends the job: one commit
 * writes the record of the sleep and moves the job from its claim to the scheduled jobs. The next attempt returns from the sleep.
 *
 * Proved within these bounds:
 *   TWICE  a step is recorded twice
 *   AGAIN  the job sleeps twice
 *   STUCK  the job is not finished and is in no place from which it runs again
 *
 * holds:
 * wide:   NW=3
 * breaks: NO_FENCE      TWICE  a record does not check whether the claim still exists
 * breaks: SETTLE_FIRST  AGAIN  the job is scheduled in a commit before the one of the record
 * breaks: LATE_SETTLE   STUCK  the claim is given up before the job is scheduled
 *
 * Not modeled: signals (signal.pml), and the result of a commit in doubt (commit.pml).
 */
#ifndef NW
#define NW 2              /* attempts at the same time, including frozen ones */
#endif
#ifndef TAKES
#define TAKES 2           /* how often the supervisor reclaims the job */
#endif

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define TWICE 1
#define AGAIN 2
#define STUCK 3

#define READY 0
#define RUNNING 1
#define SCHEDULED 2
#define OVER 3
#define NOWHERE 4

byte place = READY;
byte token = 0;           /* of the claim; it increases */
byte takes = TAKES;
byte records = 0;
bool slept = false;       /* the record of the sleep */
byte sleeps = 0;          /* how often the job was scheduled for its sleep */

#define mine (place == RUNNING && token == own)

proctype Worker() {
    byte own = 0; bool has; bool over;
    do
    :: atomic { place == READY -> place = RUNNING; token++; own = token };
       atomic { has = records > 0; over = slept };                    /* list_steps */
       if
       :: !has ->
            if
            :: skip                                                   /* the effect, then the record */
            :: goto dead
            fi;
            atomic {
                if
#ifdef NO_FENCE
                :: true ->
#else
                :: mine ->
#endif
                    records++;
                    require(TWICE, records == 1)
                :: !mine -> goto lost
                fi
            }
       :: else
       fi;
       if
       :: skip
       :: goto dead
       fi;
       if
       :: over -> atomic { if :: mine -> place = OVER :: else fi }
       :: else ->
#ifdef SETTLE_FIRST
            atomic { if :: mine -> place = SCHEDULED; sleeps++; require(AGAIN, sleeps == 1) :: else -> goto lost fi };
            if
            :: atomic { slept = true }
            :: goto dead
            fi
#else
#ifdef LATE_SETTLE
            atomic { if :: mine -> slept = true; place = NOWHERE; sleeps++ :: else -> goto lost fi };
            if
            :: atomic { place = SCHEDULED }
            :: goto dead
            fi
#else
            atomic {
                if
                :: mine -> slept = true; place = SCHEDULED; sleeps++; require(AGAIN, sleeps == 1)
                :: else -> goto lost
                fi
            }
#endif
#endif
       fi;
lost:  atomic { own = 0; has = false; over = false }
    :: timeout -> break
    od;
dead: skip
}

active proctype Clock() {
    do
    :: atomic { place == SCHEDULED -> place = READY }
    :: timeout -> break
    od
}

active proctype Supervisor() {
    do
    :: atomic { takes > 0 && place == RUNNING -> takes--; place = READY }
    :: timeout ->
        if
        :: atomic { place == RUNNING -> place = READY }               /* the job of a dead worker */
        :: else -> break
        fi
    od
}

active proctype Monitor() {
    timeout;
    require(STUCK, place != NOWHERE)
}

init {
    byte i = 0;
    atomic {
        do
        :: i < NW -> run Worker(); i++
        :: else -> break
        od
    }
}
