/* The end of a flow: members that end and add members, a user who runs a member or the flow again, and resolvers that count and die.
 * A resolver is a maintenance process. sql/schema/30_flows.sql, 33_resolve_flows.sql and 35_retry_flows.sql implement this.
 *
 * Each transaction that ends members, adds members or runs one again inserts a row into `ends`: how much `pending` of the flow changes. A
 * resolver locks the row of the flow. Then one statement deletes all rows of `ends` that it sees. The resolver adds them to `pending` and
 * commits both together. If `pending` is 0, the same transaction ends the flow. The callback starts in it too, or later if its row is
 * locked. A retry of the flow locks the flow, counts the live members in one snapshot, subtracts what `ends` contains, and opens the
 * flow. If a user runs a member again after the end of the flow, the flow does not wait for it until the flow itself is run again.
 *
 * OUTSIDE   The flow is not sealed, and a program adds a member. The program shares a lock until its commit, and a seal waits for this
 *           lock. A canceled flow ends without a seal, so its resolver tries to get the lock before it deletes the rows.
 * VANISHES  A user deletes a member with SQL. A search locks the flow and compares `pending`, `ends` and the members in one snapshot.
 * FOLLOWS   A producer enqueues a job behind the flow. A maintenance process locks the flow, reads whether it is open, and marks the job.
 *
 * Proved within these bounds:
 *   EARLY  the flow ends, or has ended, while a member is live for which it waits
 *   TWICE  the flow ends twice although it was opened once, or its callback is enqueued twice
 *   LOST   all members have ended, and the flow is open, or the callback or the job behind the flow does not start
 *   COUNT  `pending` of the open flow and the rows of `ends` together differ from the number of live members
 *
 * holds:
 * holds:  OUTSIDE
 * holds:  VANISHES
 * holds:  FOLLOWS
 * wide:   NR=3 DEATHS=2 RETRIES=2 REOPENS=2
 * wide:   OUTSIDE RETRIES=2 REOPENS=2
 * wide:   VANISHES RETRIES=2 REOPENS=2
 * breaks: NO_LOCK        TWICE  two resolvers count at the same time: the row of the flow is not locked
 * breaks: ROW_BY_ROW     EARLY  the rows are counted one at a time
 * breaks: EARLY_LOOK     EARLY  the resolver deletes the rows in a snapshot from before the lock
 * breaks: DELETE_FIRST   LOST   one transaction deletes the rows, and the next one counts them
 * breaks: COUNTS_ON      TWICE  the resolver counts the rows of a flow that has ended
 * breaks: AS_ONE         LOST   members that a claim ends together are counted as one
 * breaks: NOTED_TWICE    EARLY  the trigger also inserts rows for members that a claim ends together
 * breaks: ENDS_FIRST     EARLY  a member ends before its transaction commits that adds a member
 * breaks: NO_PLUS        EARLY  a retry by hand inserts no row into ends
 * breaks: NO_REOPEN      LOST   a retry of the flow does not open it
 * breaks: NO_RECOUNT     EARLY  a retry of the flow does not count the members
 * breaks: EARLY_RECOUNT  EARLY  a retry of the flow counts the members in a snapshot from before the lock
 * breaks: RECOUNTS_ROWS  COUNT  a retry of the flow does not subtract what ends contains
 * breaks: SILENT_RETRY   LOST   a retry of the flow inserts no row if it runs no member again
 * breaks: KEEPS_END      LOST   a retry of the flow keeps the row of an end that the callback has not received
 * breaks: OUTSIDE NO_SHARED_LOCK  EARLY  the program does not share the lock
 * breaks: OUTSIDE NO_SEAL_LOCK    EARLY  the seal does not wait for the lock
 * breaks: OUTSIDE NO_CHECK        EARLY  the program does not check the flow after it has got the lock
 * breaks: OUTSIDE NO_SHARE        EARLY  the snapshot of the program is older than a seal or an end
 * breaks: OUTSIDE NO_SEAL         EARLY  the flow ends before it is sealed
 * breaks: OUTSIDE SILENT_SEAL     LOST   the seal inserts no row into ends
 * breaks: OUTSIDE NO_TRY          EARLY  a canceled flow ends without the lock
 * breaks: OUTSIDE TRIES_LATE      EARLY  the resolver tries to get the lock after it has deleted the rows
 * breaks: OUTSIDE NO_STOP_LOOK    LOST   no resolver looks at a canceled flow without rows
 * breaks: VANISHES NO_SEARCH_LOCK  EARLY  two searches find the same member
 * breaks: FOLLOWS NO_MARK_LOCK     LOST   the process that marks the job does not lock the flow
 *
 * Not modeled: how members end (completed, failed, canceled), so a flow ends either way, and a retry of the flow runs any member again or
 * none; flows in flows, which end like members; a program that adds members after the seal, which only running members may do; and
 * attempts that have lost their claim and still add members.
 */
#ifndef NR
#define NR 2              /* resolvers */
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef RETRIES
#define RETRIES 1         /* members that the user runs again */
#endif
#ifndef REOPENS
#define REOPENS 1         /* retries of the flow */
#endif
#define MEMBERS 3         /* the last one is added */

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define EARLY 1
#define TWICE 2
#define LOST 3
#define COUNT 4

#define NONE 0
#define LIVE 1
#define OVER 2

#define UNMARKED 1
#define WAITS 2
#define CANCELED 3
#define READY 4

byte place[MEMBERS];
bool since[MEMBERS];      /* a user has run it again since a resolver deleted rows, or such a member has added it */
bool apart[MEMBERS];      /* the same, after the end of the flow, which does not wait for it */
bool busy = false;        /* member 0 is adding a member */
bool added = false;

byte zeros = 0;           /* committed rows of ends, by what they add: 0, 1, -1, -2 */
byte pluses = 0;
byte minuses = 0;
byte pairs = 0;
byte zeros_gone = 0;      /* the same, deleted by a transaction that has not committed */
byte pluses_gone = 0;
byte minuses_gone = 0;
byte pairs_gone = 0;

short pending = 0;        /* the row of the flow */
bool open = true;
bool sealed = true;
bool stopping = false;
bool locked = false;      /* this row is locked */
#ifdef OUTSIDE
bool changed = false;     /* a transaction has changed this row since the snapshot of the program */
#endif
#ifdef EARLY_LOOK
bool older[NR];           /* a resolver has deleted rows since the snapshot of this one */
#endif

byte shared = 0;          /* the advisory lock of the flow: how many share it */
bool exclusive = false;

byte openings = 1;
byte endings = 0;
#ifdef FOLLOWS
byte job = NONE;          /* what waits for the flow: its callback, or the job behind it */
#else
byte job = WAITS;
#endif
byte calls = 0;
bool succeeded = false;   /* how the flow has ended */
bool left_success = false; /* a row of ends about the end of the flow that no resolver has passed on */
bool left_failure = false;
byte deaths = DEATHS;     /* of resolvers */

#define live ((place[0] == LIVE) + (place[1] == LIVE) + (place[2] == LIVE))
#define rows (zeros + pluses + minuses + pairs)
#define rows_gone (zeros_gone + pluses_gone + minuses_gone + pairs_gone)
#define delta (pluses + pluses_gone - minuses - minuses_gone - 2 * (pairs + pairs_gone))
#define missing (pending + delta - live)

#ifdef OUTSIDE
#define change_flow() changed = true
#else
#define change_flow() skip
#endif

inline forget() {         /* the rows; this and the following are used in an atomic */
    zeros_gone = 0; pluses_gone = 0; minuses_gone = 0; pairs_gone = 0
}

inline give_back() {
    zeros = zeros + zeros_gone; pluses = pluses + pluses_gone; minuses = minuses + minuses_gone; pairs = pairs + pairs_gone;
    forget()
}

inline take() {
#ifdef ROW_BY_ROW
    if
    :: zeros > 0 -> zeros--; zeros_gone++
    :: pluses > 0 -> pluses--; pluses_gone++
    :: minuses > 0 -> minuses--; minuses_gone++
    :: pairs > 0 -> pairs--; pairs_gone++
    :: rows == 0
    fi;
#else
    zeros_gone = zeros; pluses_gone = pluses; minuses_gone = minuses; pairs_gone = pairs;
    zeros = 0; pluses = 0; minuses = 0; pairs = 0;
#endif
    since[0] = false; since[1] = false; since[2] = false
}

inline pass_on(success) { /* to the job that waits; from resolve_ends */
    if
    :: job == WAITS || job == UNMARKED ->
#ifdef FOLLOWS
        job = READY; calls++; require(EARLY, endings > 0)
#else
        if
        :: success -> job = READY; calls++; require(TWICE, calls == 1)
        :: else -> job = CANCELED
        fi
#endif
    :: else
    fi
}

inline end_flow() {
    open = false; stopping = false; sealed = true; endings++;
    require(TWICE, endings <= openings);
    require(EARLY, (place[0] != LIVE || since[0]) && (place[1] != LIVE || since[1]) && (place[2] != LIVE || since[2]));
    apart[0] = (place[0] == LIVE); apart[1] = (place[1] == LIVE); apart[2] = (place[2] == LIVE);
    if
    :: succeeded = true
    :: succeeded = false
    fi;
    if
    :: sees ->
        if
        :: pass_on(succeeded)
        :: succeeded -> left_success = true               /* a user's transaction has locked the job */
        :: !succeeded -> left_failure = true
        fi
    :: else
    fi
}

#ifdef TRIES_LATE
#define got (shared == 0 && !exclusive)
#elif defined(NO_TRY)
#define got true
#else
#define got alone
#endif

inline count() {
#ifdef AS_ONE
    pending = pending + pluses_gone - minuses_gone - pairs_gone;
#else
    pending = pending + pluses_gone - minuses_gone - 2 * pairs_gone;
#endif
    change_flow();
    if
#ifdef NO_SEAL
    :: pending <= 0 -> end_flow()
#else
    :: pending <= 0 && (sealed || (stopping && got)) -> end_flow()
#endif
    :: else
    fi
}

#ifdef NO_STOP_LOOK
#define due (rows > 0)
#else
#define due (rows > 0 || (open && stopping && pending <= 0 && (sealed || shared == 0)))
#endif

#ifdef NO_LOCK
#define unlocked true
#else
#define unlocked !locked
#endif

proctype Resolver(byte me) {
    bool was_open; bool alone; bool sees;
#ifdef EARLY_LOOK
    byte zeros_seen; byte pluses_seen; byte minuses_seen; byte pairs_seen;
#endif
    do
    :: atomic { due && unlocked ->                                    /* FOR UPDATE SKIP LOCKED */
#ifdef EARLY_LOOK
            zeros_seen = zeros; pluses_seen = pluses; minuses_seen = minuses; pairs_seen = pairs; older[me] = false
       };
       atomic { unlocked ->
#endif
#ifndef NO_LOCK
            locked = true;
#endif
            was_open = open
       };
#if defined(OUTSIDE) && !defined(TRIES_LATE)
       atomic {                                                       /* pg_try_advisory_xact_lock */
           if
           :: stopping && !sealed && shared == 0 && !exclusive -> exclusive = true; alone = true
           :: else
           fi
       };
#endif
#ifdef EARLY_LOOK
       atomic {
           if
           :: !older[me] ->
               zeros = zeros - zeros_seen; pluses = pluses - pluses_seen; minuses = minuses - minuses_seen; pairs = pairs - pairs_seen;
               zeros_gone = zeros_seen; pluses_gone = pluses_seen; minuses_gone = minuses_seen; pairs_gone = pairs_seen
           :: else                                                    /* another resolver has deleted them */
           fi;
           older[0] = true; older[1] = true;
           zeros_seen = 0; pluses_seen = 0; minuses_seen = 0; pairs_seen = 0
       };
#else
       atomic { rows_gone == 0 -> take() };                           /* the DELETE, which waits for another one */
#endif
#ifdef FOLLOWS
       sees = (job != NONE);                                          /* the snapshot of the statement that ends the flow */
#else
       sees = true;
#endif
       atomic {
           if
           :: deaths > 0 ->                                           /* it has died at any step: rolled back */
               deaths--;
#ifdef DELETE_FIRST
               forget()
#else
               give_back()
#endif
           :: true ->                                                 /* the commit */
               if
#ifdef COUNTS_ON
               :: true -> count()
#else
               :: was_open -> count()
               :: else
#endif
               fi;
               forget()
           fi;
           if :: alone -> exclusive = false :: else fi;
#ifndef NO_LOCK
           locked = false;
#endif
           was_open = false; alone = false; sees = false
       }
    :: timeout -> break
    od
}

inline end(j) {           /* in an atomic: the trigger on history */
    place[j] = OVER; minuses++
}

active proctype Members() {
    do
    :: atomic { place[0] == LIVE && !busy -> end(0) }
    :: atomic { place[1] == LIVE -> end(1) }
    :: atomic { place[2] == LIVE -> end(2) }
    :: atomic { place[0] == LIVE && !busy && place[1] == LIVE ->      /* settle_members */
            place[0] = OVER; place[1] = OVER; pairs++;
#ifdef NOTED_TWICE
            minuses = minuses + 2
#endif
       }
    :: timeout -> break
    od
}

inline add() {            /* in an atomic: the commit of a transaction that adds a member */
    place[2] = LIVE; since[2] = since[0]; apart[2] = apart[0]; added = true; pluses++
}

#ifndef OUTSIDE
active proctype Adder() { /* the handler of member 0 */
    do
    :: atomic { place[0] == LIVE && !added && open ->                 /* extend_flow reads the flow */
#ifndef ENDS_FIRST
            busy = true
#endif
       };
       if
       :: atomic { add(); require(EARLY, open || apart[0]); busy = false }
       :: atomic { busy = false }                                     /* rolled back */
       fi
    :: timeout -> break
    od
}
#else
active proctype Program() {
    bool old; bool was_sealed; bool was_open;
    atomic {
        was_sealed = sealed; was_open = open; changed = false;
        if
        :: old = true                                                 /* REPEATABLE READ: its only snapshot */
        :: old = false
        fi
    };
    if
    :: was_sealed -> goto out
    :: else
    fi;
#ifdef NO_SHARED_LOCK
    shared++;                                                         /* only counted */
#else
    atomic { !exclusive -> shared++ };
#endif
    if
    :: !old -> atomic { was_sealed = sealed; was_open = open }
    :: else ->
#ifndef NO_SHARE
        atomic { !locked -> if :: changed -> was_open = false :: else fi }  /* FOR SHARE raises 40001 */
#endif
    fi;
    if
#ifdef NO_CHECK
    :: true ->
#else
    :: was_open && !was_sealed ->
#endif
        if
        :: atomic { add(); require(EARLY, open); shared-- }
        :: atomic { shared-- }                                        /* rolled back */
        fi
    :: !was_open || was_sealed -> atomic { shared-- }
    fi;
out: atomic { old = false; was_sealed = false; was_open = false }
}

active proctype Sealer() {
    if
    :: atomic {                                                       /* pg_advisory_xact_lock */
#ifdef NO_SEAL_LOCK
            !exclusive ->
#else
            !exclusive && shared == 0 ->
#endif
            exclusive = true };
       atomic { !locked ->                                            /* UPDATE flows, and the commit */
            if :: !sealed -> sealed = true; change_flow() :: else fi;
#ifndef SILENT_SEAL
            zeros++;
#endif
            exclusive = false }
    :: skip
    fi
}

active proctype Canceler() {
    if
    :: atomic { !locked -> if :: open -> stopping = true; change_flow() :: else fi }
    :: skip
    fi
}
#endif

active proctype User() {  /* retry_as */
    byte retries = RETRIES; byte j;
    do
    :: atomic { retries > 0 ->
            if
            :: place[0] == OVER -> j = 0
            :: place[1] == OVER -> j = 1
            :: place[2] == OVER -> j = 2
            fi;
            retries--; place[j] = LIVE; since[j] = true; apart[j] = !open;
#ifndef NO_PLUS
            pluses++;
#endif
            j = 0 }
    :: atomic { retries > 0 -> retries = 0 }
    :: timeout -> break
    od
}

active proctype Reopener() {  /* retry_flow */
    byte reopens = REOPENS; byte j; short counted;
    do
    :: atomic { reopens > 0 && !open -> reopens--;
#ifdef EARLY_RECOUNT
            counted = live - delta
#endif
       };
       atomic { !locked -> locked = true };                           /* FOR UPDATE */
#ifdef NO_RECOUNT
       counted = pending;
#elif defined(RECOUNTS_ROWS)
       atomic { counted = live };
#elif !defined(EARLY_RECOUNT)
       atomic { counted = live - delta };
#endif
       atomic {
            if
            :: place[0] == OVER -> place[0] = LIVE; pluses++
            :: place[1] == OVER -> place[1] = LIVE; pluses++
            :: place[2] == OVER -> place[2] = LIVE; pluses++
            :: true                                                   /* nothing runs again */
            fi;
            openings++; pending = counted; change_flow();
#ifndef NO_REOPEN
            open = true;
#endif
#ifndef SILENT_RETRY
            zeros++;
#endif
#ifndef KEEPS_END
            left_success = false; left_failure = false;
#endif
#ifndef FOLLOWS
            if :: job == CANCELED -> job = WAITS :: else fi;
#endif
            apart[0] = false; apart[1] = false; apart[2] = false;
            locked = false; counted = 0
       }
    :: atomic { reopens > 0 -> reopens = 0 }
    :: timeout -> break
    od
}

active proctype Passer() {    /* resolve_ends */
    do
    :: atomic { left_success -> left_success = false; pass_on(true) }
    :: atomic { left_failure -> left_failure = false; pass_on(false) }
    :: timeout -> break
    od
}

#ifdef VANISHES
active proctype Deleter() {
    if
    :: atomic { place[1] == LIVE -> place[1] = NONE }
    :: skip
    fi
}

active [2] proctype Search() {    /* find_vanished_members */
    byte found;
    do
#ifdef NO_SEARCH_LOCK
    :: atomic { open && missing > 0 -> found = missing };
       atomic { minuses = minuses + found; found = 0 }
#else
    :: atomic { open && missing > 0 && !locked -> locked = true; found = missing };
       atomic { minuses = minuses + found; found = 0; locked = false }
#endif
    :: timeout -> break
    od
}
#else
active proctype Check() {
    atomic { open && missing != 0 -> require(COUNT, false) }
}
#endif

#ifdef FOLLOWS
active proctype Producer() {
    job = UNMARKED
}

active proctype Marker() {    /* mark_upstreams */
    bool was_open;
    do
#ifdef NO_MARK_LOCK
    :: atomic { job == UNMARKED -> was_open = open };
#else
    :: atomic { job == UNMARKED && !locked -> was_open = open; locked = open };    /* FOR SHARE SKIP LOCKED */
#endif
       atomic {
            if
            :: was_open -> if :: job == UNMARKED -> job = WAITS :: else fi
            :: else -> left_success = true
            fi;
#ifndef NO_MARK_LOCK
            if :: was_open -> locked = false :: else fi;
#endif
            was_open = false }
    :: timeout -> break
    od
}
#endif

active proctype Monitor() {
    timeout;
    require(LOST, !open || (!sealed && !stopping));
    require(LOST, open || endings == openings);
#ifdef FOLLOWS
    require(LOST, open || job == READY)
#else
    require(LOST, open || !succeeded || job == READY)
#endif
}

init {
    byte i = 0;
    atomic {
#ifdef OUTSIDE
        place[1] = LIVE; pending = 1; sealed = false;
#else
        place[0] = LIVE; place[1] = LIVE; pending = 2;
#endif
        do
        :: i < NR -> run Resolver(i); i++
        :: else -> break
        od
    }
}
