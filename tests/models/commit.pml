/* A job's own transaction, which commits the job's effect together with its completion, and what a worker concludes about a commit whose answer
 * was lost.
 *
 * One job, two workers (`Child`) and one more for each that dies. A worker claims the job without waiting for the disk and begins a transaction.
 * Its first statement locks the row of the claim. The handler has one effect. The completion is written in the same transaction. The commit
 * is sent and executed later, even after the death of the worker, until its session is ended. The answer may be lost with the session
 * (BREAKS). The server may crash (CRASHES) and forget everything not yet on disk. It then assigns the numbers of forgotten transactions to
 * transactions of other programs (`Stranger`). Another supervisor (`Neighbour`) reclaims the job of an expired lease (RECLAIMS). It skips a
 * locked row, or with ENDS it first ends the session that locks the row. The handler fails FAILS times. Tokens that are assigned twice are
 * in claim.pml.
 *
 * Proved within these bounds, for every interleaving:
 *   EFFECTS       the effect is committed once: together with the completion, and in no other commit
 *   TOLD          a worker that reports its job as completed has committed; a worker that reports anything else has not. The exception needs
 *                 a crash, a number that was assigned to another transaction, and a claim that is gone (discarded or reclaimed). The job
 *                 then runs again, and only the log of the first attempt is wrong
 *   BESIDE        no attempt starts during another one, unless another supervisor ended its session, or the server crashed
 *   LOST          the job reaches a final state
 *
 * holds:
 * holds:  BREAKS=0 KILLS=2
 * holds:  RECLAIMS=2 FAILS=1
 * holds:  CRASHES=1 RECLAIMS=0
 * holds:  ENDS
 * wide:   CRASHES=1
 * wide:   ENDS RECLAIMS=2
 * breaks: TWO_COMMITS        EFFECTS  the handler's writes are committed before the completion, in a separate commit
 * breaks: NO_LOCK UNCHECKED  EFFECTS  the transaction does not lock the row, and does not check whether the completion found it
 * breaks: NO_LOCK            BESIDE   the transaction does not lock the row while the handler runs
 * breaks: GUESSES            TOLD     a commit that raised counts as one that failed
 * breaks: ASKS_EARLY         TOLD     the worker queries the result of a commit that its session may still execute
 * breaks: CRASHES=1 BY_NUMBER TOLD    the worker checks only the number, which after a crash may belong to another transaction
 * breaks: RELEASE_FIRST      LOST     the dead worker's row is released before its session is ended, so the release waits for its lock
 */
#ifndef KILLS
#define KILLS 1
#endif
#ifndef BREAKS
#define BREAKS 1
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef RECLAIMS
#define RECLAIMS 1
#endif
#ifndef FAILS
#define FAILS 0
#endif
#define STRANGERS (2 * CRASHES) /* transactions of other programs: one makes a claim durable, one gets a forgotten number */
#define NC (2 + KILLS)

#define EFFECTS 1
#define TOLD    2
#define BESIDE  3
#define LOST    4
#ifdef ONLY
#define require(name, condition) assert((condition) || name != ONLY)
#else
#define require(name, condition) assert((condition) && name)
#endif

#define READY 0
#define ENDED 255
#define MOST 31

/* the database; each commit that waits for its fsync updates the state on disk */
byte row, owner;                /* READY, ENDED, or the token of the claim; and its worker plus one */
byte tokens, xacts, effects;
byte disk_row, disk_owner, disk_tokens, disk_xacts, disk_effects;
bool known[MOST + 1];           /* transactions that committed, by number */
byte holder;                    /* the worker whose transaction locks the row, plus one */

/* the sessions of the jobs' transactions */
#define NONE    0
#define OPEN    1
#define SETTLED 2               /* the completion is written, and not committed */
#define ASKED   3               /* the commit is sent, and not executed */
byte tx[NC], number[NC], token[NC];
bool broken[NC];

bool dead[NC];
byte kills, breaks, crashes, reclaims, ends, fails, strangers;
byte runner;                    /* ghost: the worker whose handler runs, plus one */
bool committed[NC];             /* ghost: the effect of its latest attempt */
bool gone[NC];                  /* ghost: its claim was lost in a crash or after one */
bool ended_one;                 /* ghost: another supervisor has ended a session */

#define HELD(i) (row == token[i] && owner == i + 1)
#define TAKEN (row != READY && row != ENDED)

inline disk() {
  disk_row = row; disk_owner = owner; disk_tokens = tokens; disk_xacts = xacts; disk_effects = effects
}

inline let_go(i) { tx[i] = NONE; if :: holder == i + 1 -> holder = 0 :: else fi }

inline commit(i) {
#ifndef TWO_COMMITS
  require(EFFECTS, effects == 0);
  effects++; committed[i] = true;
#endif
  if :: HELD(i) -> row = ENDED; owner = 0 :: else fi;
  known[number[i]] = true;
  let_go(i); disk()
}

/* End a session. A statement that was sent to it is executed or not, but no longer after this step. */
inline end_session(i) {
  if
  :: tx[i] == ASKED -> commit(i)
  :: let_go(i)
  fi
}

#define OR_DIE :: atomic { kills < KILLS -> kills++; goto die }

proctype Child(byte i) {
  bool fate, held;
end:
  (i < 2 || kills >= i - 1);
  do
  :: atomic { row == ENDED -> break }
  OR_DIE
  :: atomic { row == READY -> tokens++; row = tokens; owner = i + 1; token[i] = tokens; committed[i] = false; gone[i] = false; broken[i] = false };
     if
     OR_DIE
     :: atomic { HELD(i) ->                                   /* begin: the first statement locks the row, or finds none */
          xacts++; number[i] = xacts; known[xacts] = false; tx[i] = OPEN;
#ifndef NO_LOCK
          holder = i + 1
#endif
        }
     :: atomic { !HELD(i) -> token[i] = 0; goto next }
     fi;
     if
     OR_DIE
     :: atomic { require(BESIDE, runner == 0 || crashes || ended_one); runner = i + 1 }
     fi;
     if
     OR_DIE
     :: atomic { fails < FAILS -> fails++; if :: runner == i + 1 -> runner = 0 :: else fi; let_go(i); goto failed }
     :: atomic { if :: runner == i + 1 -> runner = 0 :: else fi }
     fi;
#ifdef TWO_COMMITS
     atomic { require(EFFECTS, effects == 0); effects++; committed[i] = true; disk() };
#endif
     if
     OR_DIE
     :: atomic { tx[i] == OPEN && HELD(i) && (holder == 0 || holder == i + 1) -> holder = i + 1; tx[i] = SETTLED }
#ifdef UNCHECKED
     :: atomic { tx[i] == OPEN && !HELD(i) -> tx[i] = SETTLED }
#else
     :: atomic { tx[i] == OPEN && !HELD(i) -> let_go(i); goto failed }      /* the claim is lost */
#endif
     :: atomic { tx[i] == NONE -> goto doubt }                /* the session broke */
     fi;
     if
     OR_DIE
     :: atomic { tx[i] == SETTLED -> tx[i] = ASKED }
     :: atomic { tx[i] == NONE -> goto doubt }
     fi;
     if
     OR_DIE
     :: atomic { tx[i] == NONE && !broken[i] -> require(TOLD, committed[i] || gone[i]); token[i] = 0; goto next }       /* it reports: completed */
     :: atomic { broken[i] -> skip }
     fi;
doubt:
#if !defined(ASKS_EARLY)
     if
     OR_DIE
     :: atomic { end_session(i) }
     fi;
#endif
     if
     OR_DIE
     :: atomic { fate = known[number[i]]; held = HELD(i) }
     fi;
#ifdef GUESSES
     fate = false;
#endif
     if
#ifdef BY_NUMBER
     :: atomic { fate -> fate = false; held = false;
#else
     :: atomic { fate && !held -> fate = false;
#endif
          require(TOLD, committed[i] || gone[i]); token[i] = 0; goto next }
     :: else
     fi;
failed:
     if
     OR_DIE
     :: atomic { holder == 0 || !HELD(i) ->                   /* settled as "again" under the fence, in the worker's other session */
          fate = false; held = false;
          require(TOLD, !committed[i]);
          if :: HELD(i) -> row = READY; owner = 0; disk() :: else fi;
          token[i] = 0 }
     fi;
next:
     skip
  od;
  goto left;
die:
  atomic { if :: runner == i + 1 -> runner = 0 :: else fi; dead[i] = true; fate = false; held = false };
left:
  skip
}

proctype Server(byte i) {       /* executes what was sent, even if no worker waits for the answer */
end:
  do
  :: atomic { tx[i] == ASKED -> commit(i) }
  :: atomic { tx[i] == ASKED -> commit(i); if :: breaks < BREAKS -> breaks++; broken[i] = true :: else fi }
  :: atomic { tx[i] == ASKED && breaks < BREAKS -> breaks++; broken[i] = true }         /* the session breaks: what was sent may still be executed */
  od
}

proctype Parent(byte i) {
end:
  dead[i];
#ifndef RELEASE_FIRST
  atomic { end_session(i) };
#endif
  atomic { holder != i + 1 || owner != i + 1 -> if :: owner == i + 1 -> row = READY; owner = 0; disk() :: else fi };
#ifdef RELEASE_FIRST
  atomic { end_session(i) }
#endif
}

active proctype Neighbour() {
  byte i;
end:
  do
  :: atomic { TAKEN && holder == 0 && reclaims < RECLAIMS -> reclaims++; gone[owner - 1] = crashes; row = READY; owner = 0; disk() }
#ifdef ENDS
  :: atomic { TAKEN && holder && ends < RECLAIMS -> ends++; i = holder - 1; end_session(i); broken[i] = true; ended_one = true; i = 0 }
#endif
  od
}

active proctype Stranger() {    /* transactions of other programs */
end:
  do
  :: atomic { strangers < STRANGERS -> strangers++; xacts++; known[xacts] = true; disk() }
  od
}

active proctype Crash() {
  byte i;
end:
  do
  :: atomic { crashes < CRASHES -> crashes++;
       do
       :: i < NC ->
          let_go(i); broken[i] = true;
          if :: token[i] && owner == i + 1 && !(disk_owner == i + 1 && disk_row == row) -> gone[i] = true :: else fi;
          i++
       :: else -> break
       od;
       i = disk_xacts + 1;
       do :: i <= xacts -> known[i] = false; i++ :: else -> break od;
       i = 0;
       row = disk_row; owner = disk_owner; tokens = disk_tokens; xacts = disk_xacts; effects = disk_effects }
  od
}

active proctype Monitor() {     /* no process can take a step */
  timeout -> require(LOST, row == ENDED); require(EFFECTS, row != ENDED || effects == 1)
}

init {
  byte i;
  atomic { do :: i < NC -> run Child(i); run Server(i); run Parent(i); i++ :: else -> break od; i = 0 }
}
