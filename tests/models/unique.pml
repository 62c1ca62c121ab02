/* Unique jobs: producers that enqueue under one key, a worker, a retry by hand, and maintenance that deletes dead keys.
 * sql/schema/09_unique.sql, 10_enqueue_unique.sql and 11_enqueue_keyed.sql implement this.
 *
 * A key names its holder and is never released: the holder counts while it is live. A call that finds a live holder in one snapshot returns
 * this holder and writes no row. Any other call locks the key's row, which waits for the transaction of another caller, and checks again.
 * With REPLACE, an enqueue changes the holder while the holder waits for its first attempt. Otherwise a new job takes the key.
 *
 *   TWICE   two live jobs of the key (with REPLACE: two that wait for their first attempt)
 *   ANSWER  a call returns no job, or one that does not exist
 *   LOST    the payload that was enqueued last has not started, and no ready job has it
 *
 * holds:
 * holds:  REPLACE
 * wide:   REPLACE RETRIED
 * wide:   NP=3 CALLS=1
 * wide:   CALLS=3 JOBS=7
 * breaks: EARLY_LOOK    TWICE   the decision uses the snapshot from before the lock
 * breaks: TWO_SNAPSHOTS TWICE   the tables are read one after the other, and a job moves between them
 * breaks: NO_TAKE       TWICE   a retry by hand does not take the key
 * breaks: EARLY_SWEEP   TWICE   maintenance decides that a key is dead before it locks the key
 * breaks: STALE_ANSWER  ANSWER  a call that waited for the lock returns the holder that it found before
 * breaks: REPLACE NO_AGAIN    LOST  a call treats a holder that has just started as one that it has changed
 * breaks: REPLACE NO_ROW_LOCK LOST  a claim takes the row that an enqueue is about to change
 * breaks: REPLACE NO_NEW_KEY  TWICE the new job that follows a started one does not take the key
 *
 * Not modeled: the time of a key, several keys in a call, which are locked in their order, and deletions by the history.
 */
#ifndef NP
#define NP 2              /* producers */
#endif
#ifndef CALLS
#define CALLS 2           /* of each */
#endif
#ifndef JOBS
#define JOBS 5
#endif

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define TWICE 1
#define ANSWER 2
#define LOST 3

#define NONE 0
#define HIDDEN 1          /* inserted by a transaction that has not committed */
#define WAITING 2
#define RUNNING 3
#define OVER 4

byte place[JOBS];         /* by the number of the job; 0 means no job */
bool begun[JOBS];         /* it has begun an attempt */
byte payload[JOBS];
byte next = 1;
byte key = 0;             /* the holder in the key's committed row */
bool locked = false;      /* the key's row */
bool held[JOBS];          /* the job's row is locked */
byte texts = 0;           /* payloads so far */
byte last = 0;            /* the payload of the last commit */
bool ran[10];
byte retries = 1;
byte calling = NP;

inline check_all() {      /* called in an atomic, after each commit */
    byte i_; byte n_;
    i_ = 1; n_ = 0;
    do
    :: i_ < next ->
        if
#ifdef REPLACE
        :: place[i_] == WAITING && !begun[i_] -> n_++
#else
        :: place[i_] == WAITING || place[i_] == RUNNING -> n_++
#endif
        :: else
        fi;
        i_++
    :: else -> break
    od;
    require(TWICE, n_ < 2);
    i_ = 0; n_ = 0
}

inline look(job, found) { /* whether the holder counts */
#ifdef TWO_SNAPSHOTS
    found = (place[job] == RUNNING);
    found = (found || place[job] == WAITING);
#else
#ifdef REPLACE
    found = (place[job] == WAITING && !begun[job]);
#else
    found = (place[job] == WAITING || place[job] == RUNNING);
#endif
#endif
}

inline answer(job) {
    require(ANSWER, job != 0 && place[job] >= WAITING)
}

inline add() {            /* a new job under the key, whose row is locked; commit or rollback */
    atomic { mine = next; next++; place[mine] = HIDDEN };
    if
    :: atomic {
        place[mine] = WAITING; payload[mine] = text; last = text; locked = false;
#ifdef NO_NEW_KEY
        if :: key == 0 -> key = mine :: else fi;
#else
        key = mine;
#endif
        check_all()
       };
       answer(mine)
    :: atomic { place[mine] = NONE; locked = false }
    fi
}

proctype Producer() {
    byte calls = 0; byte holder; byte before; byte mine; byte text; bool counts;
    do
    :: calls < CALLS ->
        calls++;
#ifdef REPLACE
        atomic { texts++; text = texts };
        atomic { !locked -> locked = true };
        holder = key;
again:  counts = false;
        if
        :: holder != 0 ->                                 /* DELETE: waits for a claim of the row */
            atomic { !held[holder] ->
                if
                :: place[holder] == WAITING && !begun[holder] -> held[holder] = true; counts = true
                :: else
                fi }
        :: else
        fi;
        if
        :: counts ->
            if
            :: atomic { payload[holder] = text; last = text; held[holder] = false; locked = false }; answer(holder)
            :: atomic { held[holder] = false; locked = false }
            fi
        :: else ->
#ifdef NO_AGAIN
            if
            :: holder != 0 -> atomic { last = text; locked = false }
            :: else -> add()
            fi
#else
            look(holder, counts);
            if
            :: counts -> goto again                       /* the holder has moved meanwhile */
            :: else -> add()
            fi
#endif
        fi
#else
        atomic { holder = key; before = key };
#ifdef TWO_SNAPSHOTS
        look(holder, counts);
#else
        atomic { holder = key; before = key; look(holder, counts) };
#endif
        if
        :: counts -> answer(holder)
        :: else ->
            atomic { !locked -> locked = true };
#ifndef EARLY_LOOK
#ifdef TWO_SNAPSHOTS
            holder = key;
            look(holder, counts);
#else
            atomic { holder = key; look(holder, counts) };
#endif
#endif
            if
            :: counts ->
                locked = false;
#ifdef STALE_ANSWER
                holder = before;
#endif
                answer(holder)
            :: else -> add()
            fi
        fi
#endif
    :: else -> break
    od;
    atomic { calling--; holder = 0; before = 0; mine = 0; text = 0; counts = false }
}

inline pick(state) {      /* called in an atomic: a job in this state, or 0 */
    job = 1;
    do
    :: job < next && place[job] == state -> break
    :: job < next -> job++
    :: job >= next -> job = 0; break
    od
}

active proctype Worker() {
    byte job = 0;
    do
    :: atomic { next > 1 ->
            pick(WAITING);
            if
#ifdef NO_ROW_LOCK
            :: job != 0 -> held[job] = true
#else
            :: job != 0 && !held[job] -> held[job] = true /* SKIP LOCKED */
            :: job != 0 && held[job] -> job = 0
#endif
            :: job == 0
            fi
       };
       if
       :: job != 0 ->
            atomic { place[job] = RUNNING; begun[job] = true; ran[payload[job]] = true; held[job] = false };
            if
            :: place[job] = OVER
            :: atomic { retries > 0 -> retries--; place[job] = WAITING; check_all() }
            fi;
            job = 0
       :: else
       fi
    :: calling == 0 -> break
    od
}

#if !defined(REPLACE) || defined(RETRIED)
active proctype Retry() { /* by hand */
    byte job = 0; bool counts;
    do
    :: atomic { next > 1 -> pick(OVER) };
       if
       :: job != 0 -> break
       :: else
       fi
    :: calling == 0 -> goto done
    od;
#ifndef NO_TAKE
    atomic { !locked -> locked = true };
    atomic {
        counts = false;
        if :: key != 0 -> look(key, counts) :: else fi;
        if
        :: counts
        :: else -> key = job; place[job] = WAITING; begun[job] = false; check_all()
        fi;
        locked = false
    };
#else
    atomic { place[job] = WAITING; begun[job] = false; check_all() };
#endif
done: job = 0
}
#endif

active proctype Sweep() {
    bool counts;
    byte job = 0;
#ifdef EARLY_SWEEP
    atomic { key != 0 || calling == 0; counts = true; if :: key != 0 -> look(key, counts) :: else fi };
    atomic { !locked -> locked = true };
#else
    atomic { !locked && (key != 0 || calling == 0) -> locked = true };
    atomic { counts = true; if :: key != 0 -> job = key; counts = (place[job] == WAITING || place[job] == RUNNING) :: else fi };
#endif
    atomic { if :: !counts -> key = 0 :: else fi; locked = false; job = 0 }
}

active proctype Monitor() {
    byte i = 1; bool kept = false;
    timeout;              /* no other process can take a step */
    atomic {
        do
        :: i < next -> kept = kept || (place[i] == WAITING && payload[i] == last); i++
        :: else -> break
        od;
        require(LOST, last == 0 || kept || ran[last])
    }
}

init {
    byte i = 0;
    atomic {
        do
        :: i < NP -> run Producer(); i++
        :: else -> break
        od
    }
}
