/* A job's own transaction: its effect and its completion, committed together, and what is known of a commit whose answer nobody heard.
 *
 * One job, two children and one more for each that dies. A child claims the job, without waiting for the disk, and begins a transaction
 * whose first statement holds the row of the claim. The handler has one effect. The completion is written in the same transaction, the
 * commit is sent and executed later, also after the child was killed, until its session is ended. The answer may be lost with the
 * session (BREAKS), the server may crash (CRASHES) and forget what was not on disk: then numbers of transactions that it has forgotten
 * are given to strangers. A neighbour takes the row from a lapsed lease (RECLAIMS); it passes over a row that is held, or with ENDS it
 * ends the session that holds it first. The handler fails FAILS times. Tokens that come twice are claim.pml's.
 *
 * Proved within these bounds, whatever the interleaving:
 *   EFFECTS       the effect is committed once: with the completion, and by nobody else
 *   TOLD          a child that says its job is completed has committed; one that says anything else has not. But if, besides a crash and a
 *                 number that went to a stranger, its claim is gone (swallowed, or taken by a neighbour): then the job is run again, and
 *                 only the log of the first run is wrong
 *   BESIDE        no run starts beside another, unless a neighbour has ended its session, or a crash
 *   LOST          the job ends
 *
 * holds:
 * holds:  BREAKS=0 KILLS=2
 * holds:  RECLAIMS=2 FAILS=1
 * holds:  CRASHES=1 RECLAIMS=0
 * holds:  ENDS
 * wide:   CRASHES=1
 * wide:   ENDS RECLAIMS=2
 * breaks: TWO_COMMITS        EFFECTS  the handler's writes are committed first, the completion after them
 * breaks: NO_LOCK UNCHECKED  EFFECTS  nothing holds the row, and nobody looks whether the completion found it
 * breaks: NO_LOCK            BESIDE   nothing holds the row while the handler runs
 * breaks: GUESSES            TOLD     a commit that raised counts as one that failed
 * breaks: ASKS_EARLY         TOLD     what became of it is asked while its session may still be at work on it
 * breaks: CRASHES=1 BY_NUMBER TOLD     the number alone is believed, which after a crash may be a stranger's
 * breaks: RELEASE_FIRST      LOST     the dead child's row is taken before its session is ended, and waits for it
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
#define STRANGERS (2 * CRASHES) /* transactions of others: one that makes a claim durable, one that is given a forgotten number */
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

/* the database; what is on disk follows with every commit that waits */
byte row, owner;                /* READY, ENDED, or the token of the claim; and its child plus one */
byte tokens, xacts, effects;
byte disk_row, disk_owner, disk_tokens, disk_xacts, disk_effects;
bool known[MOST + 1];           /* transactions that committed, by number */
byte holder;                    /* whose transaction holds the row, plus one */

/* the sessions of the jobs' transactions */
#define NONE    0
#define OPEN    1
#define SETTLED 2               /* the completion is written, and not committed */
#define ASKED   3               /* the commit is sent, and not executed */
byte tx[NC], number[NC], token[NC];
bool broken[NC];

bool dead[NC];
byte kills, breaks, crashes, reclaims, ends, fails, strangers;
byte runner;                    /* ghost: whose handler runs, plus one */
bool committed[NC];             /* ghost: its latest run's effect */
bool gone[NC];                  /* ghost: its claim, by a crash or after one */
bool ended_one;                 /* ghost: a neighbour has ended a session */

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

/* A session is ended: what it was sent is executed, or not; then nobody works on it any more. */
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
     :: atomic { HELD(i) ->                                   /* begin: the first statement holds the row, or finds none */
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
     :: atomic { tx[i] == NONE && !broken[i] -> require(TOLD, committed[i] || gone[i]); token[i] = 0; goto next }       /* it says: completed */
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
     :: atomic { holder == 0 || !HELD(i) ->                   /* settled as "again", under the fence, by the other session */
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

proctype Server(byte i) {       /* executes what was sent, whether or not anybody waits for the answer */
end:
  do
  :: atomic { tx[i] == ASKED -> commit(i) }
  :: atomic { tx[i] == ASKED -> commit(i); if :: breaks < BREAKS -> breaks++; broken[i] = true :: else fi }
  :: atomic { tx[i] == ASKED && breaks < BREAKS -> breaks++; broken[i] = true }         /* cut off: what was sent is still executed, or not */
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

active proctype Stranger() {    /* transactions of others */
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

active proctype Monitor() {     /* nothing can move any more */
  timeout -> require(LOST, row == ENDED); require(EFFECTS, row != ENDED || effects == 1)
}

init {
  byte i;
  atomic { do :: i < NC -> run Child(i); run Server(i); run Parent(i); i++ :: else -> break od; i = 0 }
}
