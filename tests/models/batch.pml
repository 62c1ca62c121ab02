/* The jobs of a claim, their revocation and the death of a worker: what worker (`Child`) and supervisor (`Parent`) exchange through shared
 * memory while the database moves rows.
 *
 * NC workers, K jobs. A worker claims the ready jobs (one row of `running` under a new token) and runs them in order. While the first job
 * runs long, the supervisor revokes those behind it. Workers are killed at any step. Words on the status board pass through store buffers
 * (x86-TSO: other processors see a processor's stores later, in order), so a missing fence makes a property fail. Each statement to the
 * database is one step. It may still execute after the death of the worker that sent it, until its backend is ended. Time is not modeled:
 * "runs long" is any moment. A replacement worker has a separate page here. In the program, the dead worker's page is copied before it is
 * cleared. The first outcome of job 1 is "again", so this job returns to a worker whose status board still names its earlier attempt.
 * With BEHIND, the worker may make the next claim before the last one is recorded. It sends the settlement behind the next claim. The
 * settlement executes at any time or is lost with its session, and the worker learns its result before the next exchange. Until then both
 * claims are on the status board, each in a separate outcome buffer (`ledger`).
 * With FLUSH, the supervisor may also record the outcomes of a claim that continues. The worker concludes from its last finished job whether
 * the claim is still valid.
 * Not modeled: leases (lease.pml), and commits that a crash of the server discards (claim.pml).
 *
 * Proved for every job and every interleaving, with KILLS deaths and REVOKES revocations (EARLY: outcomes may also be settled in mid-claim):
 *   SIDE_BY_SIDE  its handler never starts while another attempt of the job runs
 *   AGAIN         its handler never starts after the job has ended in the database or after the handler has returned. No protocol can close
 *                 one window, which is excused: a kill between the return and the store of the outcome on the status board
 *   UNEARNED      the job is never settled as finished unless its handler returned
 *   TORN          the supervisor never accepts an outcome whose content is not on the status board
 *   BLAMED        a crash is counted for the job that was running, or announced and about to start, and for no other job
 *   COUNTED       the attempt of this job is counted exactly if its handler had started
 *   LOST          the job reaches a final state
 *   FORSAKEN      a worker does not treat a valid claim as lost
 *
 * In the program, `current` is one word for a short job (`Word.SHORT`: token and row). Its row of the job table is the content of its
 * outcome, written when the claim begins, and the end in that row is the count. Rows are used again: a claim has the rows of the claim
 * before the last one.
 *
 * holds:
 * holds:  KILLS=0 REVOKES=2
 * holds:  K=2 EARLY
 * holds:  K=2 BEHIND KILLS=0
 * holds:  K=2 BEHIND REVOKES=0
 * holds:  FLUSH KILLS=0
 * holds:  K=2 FLUSH REVOKES=0
 * holds:  K=2 FLUSH BEHIND KILLS=0 REVOKES=0
 * wide:   K=2 REVOKES=2
 * wide:   K=2 FLUSH
 * wide:   K=2 KILLS=2
 * wide:   BEHIND REVOKES=0
 * breaks: NO_CHILD_FENCE      SIDE_BY_SIDE  the worker reads `revoked` before its announcement is visible
 * breaks: NO_PARENT_FENCE     SIDE_BY_SIDE  the supervisor reads `current` before its `revoked` is visible
 * breaks: NO_LOOK             SIDE_BY_SIDE  the worker does not read `revoked`
 * breaks: GIVES_CURRENT       SIDE_BY_SIDE  the supervisor also releases the current job
 * breaks: NO_FENCE            SIDE_BY_SIDE  a settlement checks the job and not its claim
 * breaks: OUTCOME_LATE        AGAIN         an outcome is stored on the status board after the next job has started
 * breaks: BOARD_UNREAD        AGAIN         the supervisor does not settle a dead worker's outcomes from the status board
 * breaks: EXCUSE_NONE         AGAIN         the one remaining window is not excused: it exists
 * breaks: COUNT_FIRST         TORN          the count of outcomes is stored before their content
 * breaks: WORDS_WITHOUT_TOKEN UNEARNED      the count does not name its claim
 * breaks: KEEPS_ENDS         UNEARNED       a claim begins with the outcomes of the claim that used its rows before
 * breaks: NO_MARK             COUNTED       an announced job counts as started
 * breaks: EXCUSED             BLAMED        a death before an announced job has started is counted for no job
 * breaks: STAYS_NAMED         BLAMED        a job that was announced and not started, because its claim was revoked, stays on the status board
 * breaks: RELEASE_FIRST       LOST          a dead worker's jobs are released before its backend is ended
 * breaks: DROPS_REST          LOST          a worker whose claim was revoked releases only the announced job and not those behind it
 * breaks: K=2 BEHIND REVOKES=0 BEFORE_UNREAD AGAIN  the supervisor does not settle the earlier claim from the status board
 * breaks: K=2 BEHIND REVOKES=0 CLOSED_EARLY AGAIN   its outcome buffer is closed when the settlement is sent, not when its result is known
 * breaks: K=2 BEHIND REVOKES=0 ONE_LEDGER AGAIN     the next claim overwrites the outcome buffer of the earlier one
 * breaks: K=2 BEHIND REVOKES=0 UNHEARD AGAIN        in a new session the earlier claim is released as if the worker did not know it
 * breaks: K=2 BEHIND KILLS=0 READ_ON FORSAKEN      the supervisor releases the rest of a claim and records outcomes that it read of the next
 * breaks: FLUSH KILLS=0 REVOKES=0 SAYS_NOTHING FORSAKEN  the supervisor does not announce a flush
 * breaks: FLUSH KILLS=0 REVOKES=0 SAYS_LATER FORSAKEN    it announces the flush after recording the outcomes
 * breaks: FLUSH KILLS=0 REVOKES=0 ONE_LOOK FORSAKEN      it also records outcomes of later jobs
 */
#ifndef K
#define K 3
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef REVOKES
#define REVOKES 1
#endif
#define NC (2 + KILLS)          /* two workers, and one more for each that dies */

#define READY 0                 /* where a job is: ready, ended, or in the row of that token */
#define ENDED 255
#define MOST 31                 /* tokens fit into the words of the status board */

/* Words on the status board. Each contains the token of its claim, so that a reader recognizes words of an earlier claim. */
#define TOKEN(w)    ((w) >> 3)
#define JOB(w)      (((w) >> 1) & 3)
#define STARTED(w)  ((w) & 1)
#define JOBS(w)     ((w) & 7)
#define HIGHEST(m)  ((m) & 4 -> 3 : ((m) & 2 -> 2 : 1))
#define NOW(t, j, s) ((t) * 8 + (j) * 2 + (s))
#define BIT(j)      (1 << ((j) - 1))
#define LOWEST(m)   ((m) & 1 -> 1 : ((m) & 2 -> 2 : 3))

/* The properties. With ONLY, a single one is checked: a broken variant must fail in the property that its line names. */
#define SIDE_BY_SIDE 1
#define AGAIN        2
#define UNEARNED     3
#define TORN         4
#define BLAMED       5
#define LOST         6
#define FORSAKEN     7
#define COUNTED      8
#ifdef ONLY
#define require(name, condition) assert((condition) || name != ONLY)
#else
#define require(name, condition) assert((condition) && name)
#endif

/* the database */
byte row[K + 1];                /* of job j: READY, ENDED, or the token of the row of `running` that holds it */
byte owner[K + 1];              /* the worker of that row, plus one */
byte tokens;

/* shared memory: a page for each worker */
byte current[NC];               /* written by the worker: token, job, started */
byte content[NC];               /* written by the worker: the outcomes themselves, as a set of jobs */
byte count[NC];                 /* written by the worker: which of them are valid, as a set of jobs */
byte revoked[NC];               /* written by the supervisor: a token */
byte flushed[NC];                /* written by the supervisor: a token */
byte flushes;
#ifdef BEHIND
byte content_b[NC], count_b[NC]; /* the second outcome buffer: successive claims alternate between the two */
bool pending[NC], gone[NC];     /* the settlement sent behind a claim is not executed; its session was lost */
byte p_token[NC], p_fin[NC];
byte heard[NC];                 /* the current claim, which a new session does not release */
#endif

/* store buffers */
#define CURRENT 0
#define CONTENT 1
#define COUNT   2
#define CONTENT_B 3
#define COUNT_B 4
chan of_child[NC] = [4] of { byte, byte };
chan of_parent[NC] = [1] of { byte };

/* processes */
bool dead[NC];                  /* it is dead, and the supervisor has not handled this yet */
bool asking[NC];                /* it died after sending a settlement with a claim */
byte a_token[NC], a_fin[NC], a_back[NC];
byte kills, revokes;
bool retried;                   /* job 1 has had its first outcome, "again", which allows a second attempt */

/* ghosts: variables of the properties that the program does not have */
byte runner[K + 1];             /* the worker that runs job j, plus one */
byte returned;                  /* jobs whose handler has returned */
byte victim[NC];                /* the job that was announced or started when this worker was killed, without an outcome on the status board */
bool began[NC];                 /* that job had started */

#if K == 3
#define SOME_READY (row[1] == READY || row[2] == READY || row[3] == READY)
#define ALL_ENDED  (row[1] == ENDED && row[2] == ENDED && row[3] == ENDED)
#else
#define SOME_READY (row[1] == READY || row[2] == READY)
#define ALL_ENDED  (row[1] == ENDED && row[2] == ENDED)
#endif

#ifdef NO_FENCE
#define HELD(x, t) (row[x] != READY && row[x] != ENDED)
#else
#define HELD(x, t) (row[x] == (t) && (t) != 0)
#endif

/* Accept the outcomes on a status board only if they belong to claim t. */
inline outcomes(w, c, t) {
#ifndef WORDS_WITHOUT_TOKEN
  if :: TOKEN(w) != t || TOKEN(c) != t -> w = 0 :: else fi;
#endif
  require(TORN, !(JOBS(w) & ~JOBS(c)));
  w = JOBS(w); c = 0
}

/* The job for which a death is counted: the one that the status board names, if it has no outcome. The mark shows whether its attempt counts.
 * A job that had not started and is no longer in the claim, because the supervisor released it, is not charged. */
inline charge(i, now, fin) {
#ifdef EXCUSED
  x = (STARTED(now) && !(fin & BIT(JOB(now))) -> JOB(now) : 0);
#else
  x = (JOB(now) && !(fin & BIT(JOB(now))) -> JOB(now) : 0);
#endif
  x = (x && HELD(x, TOKEN(now)) -> x : 0);
  require(BLAMED, x == (began[i] || HELD(victim[i], TOKEN(now)) -> victim[i] : 0));
#ifdef NO_MARK
  require(COUNTED, !x || began[i]);
#else
  require(COUNTED, !x || STARTED(now) == began[i]);
#endif
  x = 0; victim[i] = 0; began[i] = false
}

/* One transaction: under the fence of row t, end the jobs `fin` and release the jobs `back`. Jobs that the row does not hold are unchanged. */
inline settle(t, fin, back) {
  x = 1;
  do
  :: x <= K ->
     if
     :: HELD(x, t) && (fin & BIT(x)) ->
        require(UNEARNED, returned & BIT(x));
        returned = returned & ~BIT(x); row[x] = (x == 1 && !retried -> READY : ENDED); owner[x] = 0;
        if :: x == 1 -> retried = true :: else fi
     :: HELD(x, t) && !(fin & BIT(x)) && (back & BIT(x)) -> row[x] = READY; owner[x] = 0
     :: else
     fi;
     x++
  :: else -> break
  od;
  x = 0
}

#ifndef EARLY
#define MISSING(x) ((fin & BIT(x)) && !HELD(x, t))
#if K == 3
#define ANY_MISSING (MISSING(1) || MISSING(2) || MISSING(3))
#else
#define ANY_MISSING (MISSING(1) || MISSING(2))
#endif
/* The answer to a settlement lists the recorded jobs. In this model, a live worker loses its claim only by revocation. */
#define STANDS(i) require(FORSAKEN, !ANY_MISSING || revoked[i] == t || (flushed[i] == t && HELD(HIGHEST(fin), t)))
#else
#define STANDS(i) skip
#endif

/* One transaction: move the ready jobs into a row with a new token. */
inline claim(i) {
  mine = 0; t = 0;
  if
  :: SOME_READY ->
     assert(tokens < MOST);
     tokens++; t = tokens;
     x = 1;
     do
     :: x <= K ->
        if
        :: row[x] == READY ->
           row[x] = tokens; owner[x] = i + 1; mine = mine | BIT(x);
#ifdef BEHIND
           if :: break :: true fi                             /* any number of jobs */
#endif
        :: else
        fi;
        x++
     :: else -> break
     od;
     x = 0
  :: else
  fi
}

#define FORGET(i) asking[i] = false; a_token[i] = 0; a_fin[i] = 0; a_back[i] = 0

/* The statements of a dead worker are executed: settlement and claim. No process receives the answer. */
inline late(i) {
  settle(a_token[i], a_fin[i], a_back[i]); claim(i); mine = 0; t = 0; FORGET(i)
}

inline visible(i, a, v) {
  if
  :: a == CURRENT -> current[i] = v
  :: a == CONTENT -> content[i] = v
  :: a == COUNT   -> count[i] = v
#ifdef BEHIND
  :: a == CONTENT_B -> content_b[i] = v
  :: a == COUNT_B -> count_b[i] = v
#endif
  fi
}

proctype Memory(byte i) {       /* stores become visible one by one, at any time */
  byte a, v;
#ifdef BEHIND
  byte x;
#endif
end:
  do
#ifdef BEHIND
  :: atomic { pending[i] -> settle(p_token[i], p_fin[i], 0); pending[i] = false }        /* the server executes it */
  :: atomic { pending[i] && !dead[i] && !asking[i] -> pending[i] = false; gone[i] = true }  /* or its session breaks */
#endif
  :: atomic { of_child[i]?a,v -> visible(i, a, v); a = 0; v = 0 }
  :: atomic { of_parent[i]?v -> revoked[i] = v; v = 0 }
  od
}

#define OR_DIE(where) :: atomic { kills < KILLS -> kills++; goto where }

#ifdef BEHIND
#define LEDGER second
/* Close the outcome buffer of claim w. */
inline close(i, w) {
  if
  :: LEDGER -> of_child[i]!COUNT,0; of_child[i]!CONTENT,0
  :: else   -> of_child[i]!COUNT_B,0; of_child[i]!CONTENT_B,0
  fi
}

/* Learn the result of the settlement sent behind. If its session was lost, the new session releases the jobs of claims that the worker does
 * not know, and sends the settlement in a separate statement. */
inline make_sure(i) {
  if
  :: gone[i] ->
     x = 1;
     do
     :: x <= K ->
#ifdef UNHEARD
        if :: owner[x] == i + 1 && row[x] != heard[i] -> row[x] = READY; owner[x] = 0 :: else fi;
#else
        if :: owner[x] == i + 1 && row[x] != heard[i] && row[x] != was -> row[x] = READY; owner[x] = 0 :: else fi;
#endif
        x++
     :: else -> break
     od;
     x = 0;
     settle(was, p_fin[i], 0); gone[i] = false
  :: else
  fi;
#if !defined(CLOSED_EARLY) && !defined(ONE_LEDGER)
  close(i, was);
#endif
  was = 0
}
#else
#define LEDGER 0
#endif

proctype Child(byte i) {
  byte t, mine, fin, j, x, v;
#ifdef BEHIND
  byte was;                     /* the earlier claim, whose settlement was sent */
  bit second;                   /* the outcome buffer of the current claim */
#endif
end:
  atomic { i == 0 || (i == 1 && tokens) || (i > 1 && kills >= i - 1) };   /* the first worker that claims is 0; those after 1 replace dead workers */
  do
  :: atomic { ALL_ENDED && !fin -> break }
  OR_DIE(die)
#ifdef BEHIND
  :: atomic { was && !pending[i] -> make_sure(i) }
  :: atomic { !was && fin && !mine && SOME_READY ->           /* a claim with the settlement behind it: the claim is answered first */
       was = t; p_token[i] = t; p_fin[i] = fin; pending[i] = true;
       claim(i); heard[i] = t; fin = 0; j = 0;
#ifndef ONE_LEDGER
       second = 1 - second;
#endif
#ifdef CLOSED_EARLY
       close(i, was)
#endif
     };
     goto work
  :: atomic { !was && (SOME_READY || fin || mine) };
#else
  :: atomic { SOME_READY || fin || mine };                    /* settle and claim: sent ... */
#endif
     if
     OR_DIE(die_asking)
     :: atomic { STANDS(i); settle(t, fin, mine); claim(i);            /* ... and executed */
#ifdef KEEPS_ENDS
          of_child[i]!CONTENT,(t * 8 + fin); of_child[i]!COUNT,(t * 8 + fin);
#endif
          fin = 0; j = 0 }
     fi;
#ifdef BEHIND
     heard[i] = t;
work:
#endif
     do
     :: atomic { !mine -> break }
     OR_DIE(die)
#ifdef BEHIND
     :: atomic { was && !pending[i] -> make_sure(i) }         /* before a job that may run long */
#endif
     :: atomic { mine -> j = LOWEST(mine); of_child[i]!CURRENT,NOW(t, j, 0) };            /* announce */
#ifndef NO_CHILD_FENCE
        empty(of_child[i]);                                   /* fence */
#endif
        if
        OR_DIE(die_taking)
#ifndef NO_LOOK
        :: atomic { revoked[i] == t ->                        /* release this job and all behind it, with the settlement */
#ifndef STAYS_NAMED
             of_child[i]!CURRENT,NOW(t, 0, 0);                /* a later death is not counted for this job; the word names the claim for its outcomes */
#endif
#ifdef DROPS_REST
             mine = BIT(j);
#endif
             break }
        :: atomic { revoked[i] != t ->
#else
        :: atomic { true ->
#endif
             of_child[i]!CURRENT,NOW(t, j, 1);                /* the mark: from here on a death is a crash of this job */
             require(SIDE_BY_SIDE, runner[j] == 0);
             require(AGAIN, row[j] != ENDED && !(returned & BIT(j)));
             runner[j] = i + 1 }                              /* the handler runs */
        fi;
#ifdef OUTCOME_LATE
        atomic { of_child[i]!CONTENT + 2 * LEDGER,(t * 8 + fin); of_child[i]!COUNT + 2 * LEDGER,(t * 8 + fin) };
#endif
        if
        OR_DIE(die_running)
        :: atomic { runner[j] = 0; returned = returned | BIT(j); mine = mine & ~BIT(j); fin = fin | BIT(j) }      /* it returns */
        fi;
#ifdef COUNT_FIRST
        atomic { of_child[i]!COUNT + 2 * LEDGER,(t * 8 + fin) };
#endif
#ifndef OUTCOME_LATE
        if
        OR_DIE(die_returned)
        :: atomic { of_child[i]!CONTENT + 2 * LEDGER,(t * 8 + fin);        /* first its outcome, then the count */
#ifndef COUNT_FIRST
                    of_child[i]!COUNT + 2 * LEDGER,(t * 8 + fin);
#endif
                    j = 0 }
        fi;
#endif
#ifdef EARLY                                                  /* old outcomes are settled in a separate statement */
        if
        :: true
        :: mine && fin -> atomic { settle(t, fin, 0) }        /* `fin` is kept: settling twice changes nothing */
        fi
#endif
     od
  od;
  goto left;

  /* SIGKILL. Earlier stores become visible; a statement that was sent may still execute; the handler stops. */
die_asking:
  atomic { asking[i] = true; a_token[i] = t; a_fin[i] = fin; a_back[i] = mine; goto die };
die_taking:
  atomic { victim[i] = j; goto die };
die_running:
  atomic { runner[j] = 0; victim[i] = j; began[i] = true; goto die };
die_returned:
  atomic {
    victim[i] = j; began[i] = true;
#ifndef EXCUSE_NONE
    returned = returned & ~BIT(j);                            /* no process can know that it returned: the job runs again */
#endif
    goto die };
die:
  atomic {
    do :: of_child[i]?x,v -> visible(i, x, v) :: empty(of_child[i]) -> break od;
    dead[i] = true; t = 0; mine = 0; fin = 0; j = 0; x = 0; v = 0 };
left:
  skip
}

#ifdef BEHIND
/* Settle the outcomes w of an outcome buffer under their own fence if they belong to a claim other than t. */
inline other(w, c) {
  if
  :: TOKEN(w) && TOKEN(w) != t -> y = TOKEN(w); outcomes(w, c, y); settle(y, w, 0); w = 0; c = 0; y = 0
  :: else
  fi
}
#endif

proctype Parent(byte i) {       /* what the supervisor does for one worker: its requests for one worker are sent in order */
  byte t, now, fin, con, mine, x;
#ifdef BEHIND
  byte fin_b, con_b, y;
#ifdef FLUSH
  byte v;
#endif
#endif
end:
  do
  :: atomic { current[i] && revokes < REVOKES -> revokes++; t = TOKEN(current[i]) };     /* the first job runs long */
     atomic { of_parent[i]!t };
#ifndef NO_PARENT_FENCE
     empty(of_parent[i]);                                     /* fence */
#endif
     now = current[i];
     fin = count[i];
     con = content[i];
#ifdef BEHIND
     fin_b = count_b[i];
     con_b = content_b[i];
#ifndef READ_ON
     if :: TOKEN(current[i]) == t :: else -> now = 0 fi;      /* some of the words read above may be of a claim that began meanwhile */
#endif
#endif
     if
     :: atomic { TOKEN(now) == t && JOB(now) ->               /* one transaction under the fence of row t */
#ifdef BEHIND
          other(fin, con); other(fin_b, con_b); outcomes(fin_b, con_b, t);
#endif
          outcomes(fin, con, t);
#ifdef BEHIND
          fin = fin | fin_b; fin_b = 0;
#endif
#ifdef GIVES_CURRENT
          settle(t, fin, 7 & ~(BIT(JOB(now)) - 1));
#else
          settle(t, fin, 7 & ~(BIT(JOB(now)) * 2 - 1));
#endif
          now = 0; fin = 0; t = 0 }
     :: atomic { TOKEN(now) != t || !JOB(now) -> now = 0; fin = 0; con = 0; t = 0 } /* the worker has left that claim and released the rest */
     :: atomic { true -> now = 0; fin = 0; con = 0; t = 0 }            /* the session broke, and the request is lost */
     fi;
#ifdef BEHIND
     atomic { fin_b = 0; con_b = 0 }
#endif
#ifdef FLUSH
  :: atomic { JOB(current[i]) && flushes < FLUSH -> flushes++; t = TOKEN(current[i]);         /* an outcome waits long, and so may the job */
#if !defined(SAYS_NOTHING) && !defined(SAYS_LATER)
       flushed[i] = t
#endif
     };
     now = current[i];
     fin = count[i];
     con = content[i];
#ifdef BEHIND
     fin_b = count_b[i];
     con_b = content_b[i];
#endif
     if
#ifdef ONE_LOOK
     :: atomic { TOKEN(now) == t && JOB(now) ->
#else
     :: atomic { TOKEN(now) == t && JOB(now) && current[i] == now ->      /* the same job still runs: no word read above is from a later job */
#endif
#ifdef BEHIND
          y = TOKEN(fin); v = TOKEN(fin_b);
          outcomes(fin, con, y); outcomes(fin_b, con_b, v);
          if :: v == t -> fin_b = fin_b & ~BIT(JOB(now)) :: else -> fin = fin & ~BIT(JOB(now)) fi;
#else
          outcomes(fin, con, t);
          fin = fin & ~BIT(JOB(now));
#endif
          con = 0 };
        if
#ifdef BEHIND
        :: atomic { settle(y, fin, 0); settle(v, fin_b, 0) }
#else
        :: atomic { settle(t, fin, 0) }
#endif
#ifdef SAYS_LATER
           flushed[i] = t
#endif
        :: true                                               /* the request is lost */
        fi
     :: else
     fi;
     atomic {
#ifdef BEHIND
       fin_b = 0; con_b = 0; y = 0; v = 0;
#endif
       now = 0; fin = 0; con = 0; t = 0 }
#endif
  :: atomic { dead[i] -> dead[i] = false;
#ifdef RELEASE_FIRST
       skip };
#else
       if :: asking[i] -> late(i) :: true -> FORGET(i) fi;   /* the sent statements still commit or not; then the backend is ended */
#ifdef BEHIND
       if :: pending[i] -> settle(p_token[i], p_fin[i], 0) :: true fi;
       pending[i] = false
#endif
       };
#endif
     atomic {
       now = current[i]; fin = count[i]; con = content[i]; t = TOKEN(now);
#ifdef BEHIND
       fin_b = count_b[i]; con_b = content_b[i];
#ifndef BEFORE_UNREAD
       other(fin, con); other(fin_b, con_b);
#endif
       outcomes(fin_b, con_b, t);
#endif
       outcomes(fin, con, t);
#ifdef BEHIND
       fin = fin | fin_b; fin_b = 0;
#endif
#ifndef BOARD_UNREAD
       settle(t, fin, 0);
#endif
       charge(i, now, fin);
       now = 0; fin = 0; t = 0 };
     atomic {                                                 /* release all rows of the worker */
       x = 1;
       do
       :: x <= K -> if :: owner[x] == i + 1 -> row[x] = READY; owner[x] = 0 :: else fi; x++
       :: else -> break
       od;
       x = 0;
       current[i] = 0; content[i] = 0; count[i] = 0; revoked[i] = 0;
       flushed[i] = 0;
#ifdef BEHIND
       content_b[i] = 0; count_b[i] = 0; pending[i] = false; gone[i] = false; p_token[i] = 0; p_fin[i] = 0; heard[i] = 0
#endif
     };
#ifdef RELEASE_FIRST
     atomic { if :: asking[i] -> late(i) :: true -> FORGET(i) fi };
#endif
     break
  od
}

proctype Monitor() {            /* no process can take a step */
  timeout -> require(LOST, ALL_ENDED)
}

init {
  byte i;
  atomic {
    do :: i < NC -> run Memory(i); run Child(i); run Parent(i); i++ :: else -> break od;
    run Monitor(); i = 0
  }
}
