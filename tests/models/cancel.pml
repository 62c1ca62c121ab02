/* Cancel requests in a separate table, the interruption of a running attempt, and retries by hand. Each caller gets a true answer.
 *
 * One job moves between three places: ready, the row of a claim, history (`over`). One worker (`Child`) claims it repeatedly. Its handler returns
 * "done" or "again" (AGAINS times), or it never returns (ENDLESS: only an interruption ends it). The worker is killed KILLS times; the
 * supervisor (`Parent`) then releases the job. CANCELS callers ask to cancel the job. Each calls a function that reads one table after
 * another, so the job may move between two reads. A retry by hand (RETRIES times) returns the job from the history to the queue.
 * A caller that finds the job running writes a request. Others see it after its commit: at once, later, or never, because a transaction may
 * stay open (not with ENDLESS). The supervisor learns of a request by a notification, which may be lost (LOSES times), or by a periodic query,
 * whose answer takes time. It compares the request with the worker's status board. The maintenance process applies requests that commit too late.
 * Not modeled: several jobs in a claim, and the later steps of the stop sequence. A settlement is one step here. In PostgreSQL a request may
 * commit between the snapshot and the commit of a settlement. No statement can distinguish this from a commit right after it, which is modeled.
 *
 * Proved within these bounds:
 *   ONE_PLACE     the job is in exactly one table, once
 *   OBEYED        after "cancelled", or "cancelling" with a commit while the job runs, no later claim takes the job before a retry by hand
 *   HONEST        no caller gets the answer that the job does not exist, unless the job returned to the queue three times during the call
 *   STRANGER      a job is canceled only if a request was committed since its last retry by hand
 *   HEEDED        a request is deleted only when its job is finished
 *   TOLD          no attempt with a request to cancel runs indefinitely
 *   LOST          the job reaches a final state, even while the transaction of a caller stays open
 *   LEFT          no request remains when its job is finished
 *
 * holds:
 * holds:  ENDLESS KILLS=0 RETRIES=0
 * holds:  CANCELS=2
 * holds:  RETRIES=2 AGAINS=2
 * wide:   CANCELS=3 RETRIES=3 AGAINS=3 KILLS=3
 * breaks: RETRIES=2 LOOKS_FIRST ONE_PLACE a retry finds a finished job in one statement and returns it to the queue in another
 * breaks: SETTLE_FORGETS        OBEYED    a settlement as "again" does not check for a request
 * breaks: RELEASE_FORGETS       OBEYED    the release of a dead worker's job does not check for a request
 * breaks: ONE_LOOK              HONEST    the function reads each table only once
 * breaks: BY_JOB                STRANGER  the interruption names the job and not the claim
 * breaks: RETRY_KEEPS           STRANGER  a retry by hand keeps the request to cancel the earlier attempt
 * breaks: TWO_LOOKS             HEEDED    two statements read where the job is before a request is deleted
 * breaks: NO_APPLY              LEFT      no process searches for requests that were committed too late
 * breaks: ROW_LOCK              LOST      a cancel request writes into the row of the claim, and the caller's transaction stays open
 * breaks: ENDLESS KILLS=0 RETRIES=0 NO_LOOK TOLD    the supervisor relies on the notification
 * breaks: ENDLESS KILLS=0 RETRIES=0 FORGETS TOLD    a request for a claim that is not yet on the status board is dropped
 * breaks: ENDLESS KILLS=0 RETRIES=0 FLAG_ONLY_WAITING LOST  a request to cancel a running job has no effect
 */
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef RETRIES
#define RETRIES 1
#endif
#ifndef AGAINS
#define AGAINS 1
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef LOSES
#define LOSES 1
#endif
#ifdef ONE_LOOK
#define LOOKS 1
#else
#define LOOKS 3
#endif
#define MOST 31

#define ONE_PLACE 1
#define OBEYED    2
#define HONEST    3
#define STRANGER  4
#define HEEDED    5
#define TOLD      6
#define LOST      7
#define LEFT      8
#ifdef ONLY
#define require(name, condition) assert((condition) || name != ONLY)
#else
#define require(name, condition) assert((condition) && name)
#endif

/* the database */
byte ready = 1;                 /* rows of the job in each table */
byte over;
byte row;                       /* the token of the claim that holds it, or 0 */
bool asked;                     /* a committed request */
byte locked;                    /* ROW_LOCK: open transactions that have written into the row of the claim */
byte tokens;
bool note;                      /* a notification was sent and not received */

/* shared memory */
byte board;                     /* the token of the claim whose job runs, or 0 */
byte told;                      /* the interruption: the token of a claim, or 0 */

byte known;                     /* the supervisor knows that this claim must be canceled */
bool dead;
byte kills, againsaid, loses, retries;

byte moves;                     /* ghost: how often the job returned to the queue */
bool unwanted;                  /* ghost: a caller got the answer "cancelled", or a request was committed during the attempt */
bool fresh;                     /* ghost: a request was committed since the last retry by hand */

#define WHOLE require(ONE_PLACE, ready + over + (row != 0) == 1)
#ifdef ROW_LOCK
#define FREE (locked == 0)
#else
#define FREE true
#endif

inline finish() { over++; row = 0; WHOLE }
inline cancelled() { require(STRANGER, fresh); finish() }
inline back() { ready++; moves++; row = 0; WHOLE }

active proctype Child() {
  byte t;
end:
  do
  :: atomic { ready && !dead ->
       require(OBEYED, !unwanted);
       assert(tokens < MOST);
       tokens++; ready--; row = tokens; t = tokens; WHOLE };
     if
     :: atomic { kills < KILLS -> kills++; dead = true; goto replaced }
     :: atomic { board = t }                                  /* it runs: from here on the supervisor sees it */
     fi;
     if
     :: atomic { kills < KILLS -> kills++; board = 0; dead = true; goto replaced }
#ifdef BY_JOB
     :: atomic { told && FREE ->
#else
     :: atomic { told == t && FREE ->
#endif
          told = 0; board = 0;
          if :: row == t -> cancelled() :: else fi }
#ifndef ENDLESS
     :: atomic { FREE -> board = 0;                           /* it returns and is settled under the fence */
          if
          :: row == t -> finish()
          :: row == t && againsaid < AGAINS -> againsaid++;
#ifdef SETTLE_FORGETS
             back()
#else
             if :: asked -> cancelled() :: else -> back() fi
#endif
          fi }
#endif
     fi;
replaced:
     t = 0
  od
}

active proctype Parent() {
  byte seen;
end:
  do
  :: atomic { dead && FREE -> dead = false; told = 0; known = 0;      /* its session is ended: release its job */
       if
#ifdef RELEASE_FORGETS
       :: row -> back()
#else
       :: row && asked -> cancelled()
       :: row && !asked -> back()
#endif
       :: !row
       fi }
  :: atomic { note -> note = false; if :: row && asked -> seen = row :: else fi }
#ifndef NO_LOOK
  :: atomic { row && asked && !seen && !dead && !(known == row) -> seen = row }
#endif
  :: atomic { seen && !dead ->                                /* the answer arrived: once for each claim */
#ifdef FORGETS
       if :: board == seen -> told = seen; known = seen :: else -> known = seen fi;
#else
       known = seen;
#endif
       seen = 0 }
#ifndef FORGETS
  :: atomic { known && board == known && told != known -> told = known }        /* it reads the status board */
#endif
  od
}

active proctype Maintenance() {                               /* apply_cancels.sql */
  bool runs;
end:
  do
#ifdef NO_APPLY
  :: false
#else
#ifdef TWO_LOOKS
  :: atomic { asked -> runs = (row != 0) };
     if
     :: atomic { asked && !runs && ready -> asked = false; ready--; require(STRANGER, fresh); finish() }
     :: atomic { asked && !runs && !ready -> require(HEEDED, over); asked = false }
     :: atomic { !asked || runs -> runs = false }
     fi
#else
  :: atomic { asked && ready -> asked = false; ready--; require(STRANGER, fresh); finish() }
  :: atomic { asked && over -> require(HEEDED, over); asked = false }
#endif
#endif
  od
}

active [CANCELS] proctype Canceller() {
  byte looks, before;
  bool answered;
  before = moves;
  do
  :: looks < LOOKS && !answered -> looks++;
     if
     :: atomic { ready -> ready--; over++; unwanted = true; answered = true; WHOLE; break }
     :: atomic { !ready -> skip }
     fi;
     if
#ifndef FLAG_ONLY_WAITING
     :: atomic { row ->                                       /* the request is written and not committed */
          answered = true;
#ifdef ROW_LOCK
          locked++
#endif
        };
        if
#ifndef ENDLESS
        :: goto open                                          /* never committed */
#endif
        :: atomic {                                           /* the commit */
             asked = true; fresh = true;
#ifdef ROW_LOCK
             locked--;
#endif
             if :: row -> unwanted = true :: else fi;
             if :: note = true :: loses < LOSES -> loses++ fi };
           break
        fi
     :: atomic { !row -> skip }
#else
     :: atomic { row -> answered = true; break }
     :: atomic { !row -> skip }
#endif
     fi;
     if
     :: atomic { over -> answered = true; break }             /* the answer is the job's final state */
     :: atomic { !over -> skip }
     fi
  :: looks >= LOOKS && !answered -> break
  od;
  require(HONEST, answered || moves - before >= 3);
open:
  skip
}

active [2] proctype Retrier() {
end:
  do
#ifdef LOOKS_FIRST
  :: over && retries < RETRIES -> retries++;
     atomic { ready++; moves++; if :: over -> over-- :: else fi; unwanted = false; fresh = false; asked = false; WHOLE }
#else
  :: atomic { over && retries < RETRIES -> retries++; over--; ready++; moves++; unwanted = false; fresh = false;
#ifndef RETRY_KEEPS
       asked = false;
#endif
       WHOLE }
#endif
  od
}

active proctype Monitor() {     /* no process can take a step */
  timeout -> require(TOLD, !(board && asked)); require(LOST, over == 1); require(LEFT, !asked)
}
