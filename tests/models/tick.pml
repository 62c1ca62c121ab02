/* Recurring jobs: maintenance processes read the next instant of a schedule, calculate the following one, and store instant, job and next
 * instant in one commit. A user edits the schedule meanwhile, and processes are killed. sql/schema/40_ticks.sql (tick) implements this in SQL.
 *
 * One schedule has the instants 1 to INSTANTS, which become due one after the other. A process reads the next instant, the revision and the
 * text (the look). It may be killed before it sends its decision. It may also be frozen for any time, because every interleaving is checked.
 * The statement compares the revision and inserts under the primary key of ticks. A restored backup (RESTORES) sets the next instant back.
 *
 * Proved within these bounds:
 *   ONCE     an instant has at most one job
 *   WHOLE    every instant before the next one has its row and its job
 *   OLD      no job is made from a text that was edited before its instant was stored
 *   STUCK    each instant that is due gets its job while at least one process lives
 *
 * holds:
 * holds:  NP=3 INSTANTS=2
 * holds:  EDITS=2
 * holds:  RESTORES=1
 * wide:   NP=3 INSTANTS=4 EDITS=2 RESTORES=1
 * breaks: NO_REVISION         OLD    the decision does not compare the revision
 * breaks: NO_REVISION NO_KEY  ONCE   in addition, ticks has no primary key: two processes decide the same instant
 * breaks: RESTORES=1 NO_KEY   ONCE   ticks has no primary key, and a restored backup repeats an instant
 * breaks: TWO_COMMITS         WHOLE  the next instant is committed before the job, and the process is killed in between
 * breaks: LEADER              STUCK  only the first process decides, and it is killed
 */
#ifndef NP
#define NP 2              /* maintenance processes */
#endif
#ifndef INSTANTS
#define INSTANTS 3
#endif
#ifndef EDITS
#define EDITS 1
#endif
#ifndef RESTORES
#define RESTORES 0
#endif

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define ONCE 1
#define WHOLE 2
#define OLD 3
#define STUCK 4

byte upcoming = 1;        /* next_at */
byte revision = 0;
byte text = 0;
byte due = 0;             /* instants up to this one are due */
byte ticks[INSTANTS + 2];
byte jobs[INSTANTS + 2];
byte killed = 0;
bool calm = false;        /* the user makes no further change */

inline store(made_from) {
    /* the job of the instant `seen`: INSERT INTO ticks ... ON CONFLICT, and the job only if there was none */
    if
#ifndef NO_KEY
    :: ticks[seen] > 0 -> skip
#endif
    :: else ->
        ticks[seen]++;
        jobs[seen]++;
        require(ONCE, jobs[seen] <= 1);
        require(OLD, made_from == text)
    fi
}

proctype Maintenance(byte me) {
    byte seen; byte saw; byte read;
    do
#ifdef LEADER
    :: me == 0 && upcoming <= due ->
#else
    :: upcoming <= due ->
#endif
        atomic { seen = upcoming; saw = revision; read = text };     /* the look takes no lock */
        if
        :: atomic { killed < NP - 1 -> killed++ }; goto out
        :: true
        fi;
        atomic {
            if
#ifndef NO_REVISION
            :: saw != revision -> skip                               /* another process or a user was faster */
#endif
            :: else ->
#ifdef TWO_COMMITS
                upcoming = seen + 1; revision++; goto half
#else
                if
                :: seen <= INSTANTS -> store(read)
                :: else
                fi;
                upcoming = seen + 1; revision++
#endif
            fi
        }
#ifdef TWO_COMMITS
        if
        :: false ->
half:       if
            :: atomic { killed < NP - 1 -> killed++ }; goto out
            :: true
            fi;
            atomic { store(read) }
        :: true
        fi
#endif
    :: upcoming > INSTANTS && calm -> break
    od;
out: skip
}

proctype Clock() {
    do
    :: due < INSTANTS -> due++
    :: due == INSTANTS -> break
    od
}

proctype User() {
    byte n;
    for (n : 1 .. EDITS) {
        atomic { text++; revision++ }
    }
#if RESTORES
    atomic { upcoming > 1 -> upcoming--; revision++ };
#endif
    calm = true
}

init {
    byte n;
    atomic {
        for (n : 0 .. NP - 1) { run Maintenance(n) }
        run Clock();
        run User()
    };
    (timeout);                                                       /* no process can take a step */
    for (n : 1 .. INSTANTS) {
        require(STUCK, upcoming > n);
        require(WHOLE, upcoming <= n || (ticks[n] == 1 && jobs[n] == 1))
    }
}
