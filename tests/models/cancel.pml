/* Cancelling: the flag in the claim's row, the order that reaches a run, and a retry by hand. Who asks gets an answer that is true.
 *
 * One job, which goes from table to table: ready, in the row of a claim, over. One child claims it again and again; its handler returns
 * "done" or "again" (AGAINS times), or never (ENDLESS: only an interruption ends it). It is killed KILLS times, and the parent
 * then gives back what the row holds. CANCELS people ask to cancel, each in a function that looks table by table, so that the job may
 * move between two looks; a retry by hand (RETRIES) brings the job back that is over. The parent learns of a flag by a notification,
 * which may be lost (LOSES), or by a look from time to time; the look's answer travels. What it knows it holds against the child's board.
 * Not modelled: several jobs of a claim, the ladder's later rungs.
 *
 * Proved within these bounds:
 *   ONE_PLACE     the job is in one table, once
 *   OBEYED        whoever was told "cancelled" or "cancelling": no later claim takes the job, until somebody retries it
 *   HONEST        nobody is told that there is no such job, unless it came back three times while he looked
 *   STRANGER      a run is interrupted only if this very claim was asked to be cancelled
 *   TOLD          no run that was asked to be cancelled goes on for ever
 *   LOST          the job ends
 *
 * holds:
 * holds:  ENDLESS KILLS=0 RETRIES=0
 * holds:  CANCELS=2
 * holds:  RETRIES=2 AGAINS=2
 * wide:   CANCELS=3 RETRIES=3 AGAINS=3 KILLS=3
 * breaks: RETRIES=2 LOOKS_FIRST ONE_PLACE the retry looks for a job that is over in one statement and brings it back in another
 * breaks: SETTLE_FORGETS        OBEYED    a settlement as "again" does not look at the flag
 * breaks: RELEASE_FORGETS       OBEYED    giving back a dead child's job does not look at the flag
 * breaks: ONE_LOOK              HONEST    the function looks once at each table
 * breaks: BY_JOB                STRANGER  the interruption names the job and not the claim
 * breaks: ENDLESS KILLS=0 RETRIES=0 NO_LOOK TOLD    the parent relies on the notification
 * breaks: ENDLESS KILLS=0 RETRIES=0 FORGETS TOLD    what is heard of a claim before the board shows it is dropped
 * breaks: ENDLESS KILLS=0 RETRIES=0 FLAG_ONLY_WAITING LOST  cancelling a job that runs does nothing
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
#define TOLD      5
#define LOST      6
#ifdef ONLY
#define require(name, condition) assert((condition) || name != ONLY)
#else
#define require(name, condition) assert((condition) && name)
#endif

/* the database */
byte ready = 1;                 /* rows of the job in each table */
byte over;
byte row;                       /* the token of the claim that holds it, or 0 */
bool flag;                      /* in that row: somebody wants it cancelled */
bool was_cancelled;             /* of a job that is over */
byte tokens;
bool note;                      /* a notification is on its way */

/* shared memory */
byte board;                     /* the token whose job runs, or 0 */
byte told;                      /* the interruption: a token, or 0 */

byte known;                     /* to the parent: this claim is to be cancelled */
bool dead;
byte kills, againsaid, loses, retries;

byte moves;                     /* ghost: how often it came back */
bool unwanted;                  /* ghost: somebody was told that it is cancelled, or will be */
byte flagged;                   /* ghost: tokens that were asked for; the latest */
bool running_flagged;           /* ghost: the run under way is of a claim that was asked to be cancelled */

#define WHOLE require(ONE_PLACE, ready + over + (row != 0) == 1)

inline finish(cancelled) { over++; row = 0; was_cancelled = cancelled; flag = false; WHOLE }
inline back() { ready++; moves++; row = 0; flag = false; WHOLE }

active proctype Child() {
  byte t;
end:
  do
  :: atomic { ready && !dead ->
       require(OBEYED, !unwanted);
       assert(tokens < MOST);
       tokens++; ready--; row = tokens; t = tokens; flag = false; WHOLE };
     if
     :: atomic { kills < KILLS -> kills++; dead = true; goto replaced }
     :: atomic { board = t; running_flagged = flag }          /* it runs: from here on the parent sees it */
     fi;
     if
     :: atomic { kills < KILLS -> kills++; board = 0; dead = true; running_flagged = false; goto replaced }
#ifdef BY_JOB
     :: atomic { told ->
#else
     :: atomic { told == t ->
#endif
          require(STRANGER, flagged == t && running_flagged);
          told = 0; board = 0; running_flagged = false;
          if :: row == t -> finish(true) :: else fi }
#ifndef ENDLESS
     :: atomic { board = 0; running_flagged = false;          /* it returns, and is settled under the fence */
          if
          :: row == t -> finish(false)
          :: row == t && againsaid < AGAINS -> againsaid++;
#ifdef SETTLE_FORGETS
             back()
#else
             if :: flag -> finish(true) :: else -> back() fi
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
  :: atomic { dead -> dead = false; told = 0; known = 0;      /* its session is ended: give back what it held */
       if
#ifdef RELEASE_FORGETS
       :: row -> back()
#else
       :: row && flag -> finish(true)
       :: row && !flag -> back()
#endif
       :: !row
       fi }
  :: atomic { note -> note = false; if :: row && flag -> seen = row :: else fi }
#ifndef NO_LOOK
  :: atomic { row && flag && !seen && !dead && !(known == row) -> seen = row }
#endif
  :: atomic { seen && !dead ->                                /* the answer has come: once for each claim */
#ifdef FORGETS
       if :: board == seen -> told = seen; known = seen :: else -> known = seen fi;
#else
       known = seen;
#endif
       seen = 0 }
#ifndef FORGETS
  :: atomic { known && board == known && told != known -> told = known }        /* a look at the board */
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
     :: atomic { ready -> ready--; over++; was_cancelled = true; unwanted = true; answered = true; WHOLE; break }
     :: atomic { !ready -> skip }
     fi;
     if
#ifndef FLAG_ONLY_WAITING
     :: atomic { row -> flag = true; flagged = row; unwanted = true; answered = true;
          if :: board == row -> running_flagged = true :: else fi;
          if :: note = true :: loses < LOSES -> loses++ fi;
          break }
     :: atomic { !row -> skip }
#else
     :: atomic { row -> answered = true; break }
     :: atomic { !row -> skip }
#endif
     fi;
     if
     :: atomic { over -> answered = true; break }             /* told the state that it has */
     :: atomic { !over -> skip }
     fi
  :: looks >= LOOKS && !answered -> break
  od;
  require(HONEST, answered || moves - before >= 3)
}

active [2] proctype Retrier() {
end:
  do
#ifdef LOOKS_FIRST
  :: over && retries < RETRIES -> retries++;
     atomic { ready++; moves++; if :: over -> over-- :: else fi; unwanted = false; WHOLE }
#else
  :: atomic { over && retries < RETRIES -> retries++; over--; ready++; moves++; was_cancelled = false; unwanted = false; WHOLE }
#endif
  od
}

active proctype Monitor() {     /* nothing can move any more */
  timeout -> require(TOLD, !(board && flag)); require(LOST, over == 1)
}
