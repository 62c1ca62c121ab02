/* Claims that do not wait for their fsync. A crash of the server discards the latest commits, so the server may assign a token a second time.
 *
 * Two workers (`Child`), two jobs, claims of one or two jobs. The database has a volatile and a durable state. A commit that waits for its
 * fsync makes everything committed so far durable. A claim without a settlement does not wait. The server crashes CRASHES times: the
 * durable state replaces the volatile one, and every session breaks. In addition, the answer to an executed statement is lost BREAKS times,
 * and the session of that worker breaks. A worker notices the break when it sends its next statement. It then opens a new session, releases
 * the claims whose answers it never received, and settles its finished jobs in a separate statement.
 * The settlement of the last claim and the next claim are sent together and executed one after the other. The settlement waits for its
 * fsync, the claim does not, and a crash may come between the two.
 * With BEHIND, the worker may also send them in the other order: the claim is answered first, and its jobs run while the settlement behind
 * it is executed or lost. The worker learns the result of that settlement before it sends its next statement. It sends a settlement behind a
 * claim only in the session in which the settled claim was made. In a later session, the server may have assigned the same token a second
 * time, even to the claim in front of the settlement.
 *
 * Proved within these bounds:
 *   STRANGER      a settlement is accepted only from the claim that holds the job
 *   TWICE         at most one attempt of a job is settled
 *   AGAIN         a job whose settlement was answered never starts again, unless a crash has discarded a claim of this job
 *   BESIDE        an attempt starts during another attempt of its job only if a crash has discarded a claim of this job
 *   LOST          every job reaches a final state
 *
 * holds:
 * holds:  CRASHES=2
 * holds:  BREAKS=2
 * holds:  BEHIND
 * wide:   CRASHES=2 BREAKS=2
 * wide:   BEHIND CRASHES=2
 * wide:   BEHIND BREAKS=2
 * breaks: TOKEN_ONLY      STRANGER  the fence compares only the token: the server may have assigned it to another worker too
 * breaks: CHILD_ASYNC     STRANGER  registering a worker does not wait for its fsync: two live workers may have the same number
 * breaks: SETTLE_ASYNC    AGAIN     a settlement does not wait for its fsync
 * breaks: KEEPS_UNHEARD   LOST      no process releases a claim whose answer was lost
 * breaks: REUNITES        LOST      if a settlement finds its claim lost, the worker still starts the rest of the claim (see below)
 * breaks: FORGETS_REST    LOST      after such a settlement the worker discards the rest of the claim without releasing it
 * breaks: BEHIND ANY_SESSION STRANGER  a settlement is sent behind a claim in a session other than the one that made its own claim
 * breaks: BEHIND WITH_A_CLAIM STRANGER  in a session other than the one that made its claim, a settlement is sent together with the next claim
 * breaks: BEHIND UNSURE   LOST      if the session of a settlement sent behind a claim is lost, the worker does not send the settlement again
 *
 * REUNITES is what the program must not do. A crash discards a claim, and the worker still runs the rest of its jobs under their token. The
 * worker sends their settlement with the next claim. That claim gets the same token, and its answer is lost. The worker now reports that it
 * has this token, so no process releases the jobs of the new claim, whose answer the worker never received.
 */
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef BREAKS
#define BREAKS 1
#endif
#define J 2                     /* jobs */

#define STRANGER 1
#define TWICE    2
#define AGAIN    3
#define BESIDE   4
#define LOST     5
#ifdef ONLY
#define require(name, condition) assert((condition) || name != ONLY)
#else
#define require(name, condition) assert((condition) && name)
#endif

#define READY 0
#define ENDED 255
#define BIT(j) (1 << ((j) - 1))
#define LOWEST(m) ((m) & 1 -> 1 : 2)

/* The database: [0] is what transactions see, [1] is what is on disk. */
typedef Image {
  byte job[J + 1];              /* READY, ENDED, or the token of its claim */
  byte child[J + 1];            /* and the number of its worker */
  byte claim[J + 1];            /* ghost: unique number of the claim, which no crash assigns a second time */
  byte tokens;
  byte children
};
Image db[2];

byte number[2];                 /* the number under which a worker is registered */
bool broken[2];                 /* its session is broken, and the worker has not noticed it */
byte crashes, breaks, claims;
byte runner[J + 1];             /* ghost: the worker that runs it, plus one */
byte swallowed;                 /* ghost: jobs that had a claim discarded by a crash */
byte answered;                  /* ghost: jobs whose settlement was answered */
byte settled;                   /* ghost: jobs with an accepted settlement that no crash has discarded */
byte settled_durably;           /* ghost */
#ifdef BEHIND
byte b_t[2], b_fin[2], b_ghost[2], b_kept[2];    /* the earlier claim, its outcomes, and which of them were accepted */
bool sent[2];                   /* its settlement was sent and is not executed */
#endif

#define OVER (db[0].job[1] == ENDED && db[0].job[2] == ENDED)
#define SOME_READY (db[0].job[1] == READY || db[0].job[2] == READY)

inline copy(from, to) {
  db[to].tokens = db[from].tokens; db[to].children = db[from].children;
  x = 1;
  do
  :: x <= J -> db[to].job[x] = db[from].job[x]; db[to].child[x] = db[from].child[x]; db[to].claim[x] = db[from].claim[x]; x++
  :: else -> break
  od;
  x = 0
}

inline wait_for_disk() { copy(0, 1); settled_durably = settled }

#ifdef TOKEN_ONLY
#define HELD(x, t) (db[0].job[x] == (t) && (t) != 0)
#else
#define HELD(x, t) (db[0].job[x] == (t) && (t) != 0 && db[0].child[x] == number[i])
#endif

inline settle(t, fin, ghost, kept) {             /* the jobs `fin` under the fence (number, t); `kept` is the set of accepted jobs */
  x = 1; kept = 0;
  do
  :: x <= J ->
     if
     :: (fin & BIT(x)) && HELD(x, t) ->
        require(STRANGER, db[0].claim[x] == ghost);
        require(TWICE, !(settled & BIT(x)));
        settled = settled | BIT(x); kept = kept | BIT(x);
        db[0].job[x] = ENDED; db[0].child[x] = 0; db[0].claim[x] = 0
     :: else
     fi;
     x++
  :: else -> break
  od;
  x = 0
}

inline take() {                 /* claim one ready job or all; `nt`, `got` and `nghost` are the answer */
  got = 0; nt = 0; nghost = 0;
  if
  :: SOME_READY ->
     assert(claims < 100);
     if :: one = true :: one = false fi;
     claims++; nghost = claims; db[0].tokens++; nt = db[0].tokens;
     x = 1;
     do
     :: x <= J ->
        if
        :: db[0].job[x] == READY && (!one || !got) -> db[0].job[x] = nt; db[0].child[x] = number[i]; db[0].claim[x] = nghost; got = got | BIT(x)
        :: else
        fi;
        x++
     :: else -> break
     od;
     x = 0; one = false
  :: else
  fi
}

inline hand_back() {            /* release the jobs `mine` under the fence (number, t) */
  x = 1;
  do
  :: x <= J -> if :: (mine & BIT(x)) && HELD(x, t) -> db[0].job[x] = READY; db[0].child[x] = 0; db[0].claim[x] = 0 :: else fi; x++
  :: else -> break
  od;
  x = 0
}

#ifdef BEHIND
#define BEFORE(x) (db[0].job[x] == b_t[i])
#else
#define BEFORE(x) false
#endif

inline give_back_unheard() {
#ifdef KEEPS_UNHEARD
  skip
#else
  x = 1;
  do
  :: x <= J ->
     if
     :: db[0].job[x] != READY && db[0].job[x] != ENDED && db[0].child[x] == number[i] && db[0].job[x] != t && !BEFORE(x) ->
        db[0].job[x] = READY; db[0].child[x] = 0; db[0].claim[x] = 0
     :: else
     fi;
     x++
  :: else -> break
  od;
  x = 0
#endif
}

#ifdef BEHIND
#define RENEW broken[i] = false; same = false
#define SAME same = true
#define CLEAR !b_t[i]
#else
#define RENEW broken[i] = false
#define SAME skip
#define CLEAR true
#endif
#define FORGET t = 0; mine = 0; fin = 0; ghost = 0
#define UNHEARD breaks < BREAKS

proctype Child(byte i) {
  byte t, nt, mine, got, fin, kept, j, x, ghost, nghost;
  bool lost, one;
#ifdef BEHIND
  bool same, working;           /* the session made the current claim; that claim continues */
#endif
end:
  atomic {                      /* register; this commit waits for its fsync */
    db[0].children++; number[i] = db[0].children;
#ifndef CHILD_ASYNC
    wait_for_disk()
#endif
  };
again:
  do
  :: atomic { OVER && !fin -> break }
  :: atomic { broken[i] && (SOME_READY || fin || !OVER) ->      /* it notices the break and opens a new session */
       RENEW; give_back_unheard(); wait_for_disk();
       nt = 0; got = 0; nghost = 0 };
     if
#ifdef BEHIND
     :: b_t[i] -> working = false; goto before
#endif
     :: fin -> goto alone
     :: else
     fi
  :: atomic { !broken[i] && !fin && SOME_READY && CLEAR -> take() };     /* a claim without a settlement does not wait for its fsync */
     if
     :: atomic { !broken[i] -> t = nt; mine = got; ghost = nghost; nt = 0; got = 0; nghost = 0; SAME };
        goto work
     :: atomic { broken[i] -> nt = 0; got = 0; nghost = 0 }
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; nt = 0; got = 0; nghost = 0 }
     fi
#ifdef BEHIND
  :: !broken[i] && b_t[i] -> working = false; goto before       /* learn its result before sending the next statement */
#ifdef WITH_A_CLAIM
#define ALONE false
#else
#define ALONE (!same)
#endif
  :: !broken[i] && !b_t[i] && fin && ALONE -> goto alone
#ifdef ANY_SESSION
#define MAY true
#else
#define MAY same
#endif
  :: atomic { !broken[i] && !b_t[i] && fin && SOME_READY && MAY -> take() };     /* a claim with the settlement behind it */
     if
     :: atomic { !broken[i] ->
          b_t[i] = t; b_fin[i] = fin; b_ghost[i] = ghost; sent[i] = true;
          t = nt; mine = got; fin = 0; ghost = nghost; nt = 0; got = 0; nghost = 0; same = true };
        goto work
     :: atomic { broken[i] -> nt = 0; got = 0; nghost = 0 }
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; nt = 0; got = 0; nghost = 0 }
     fi
  :: atomic { !broken[i] && fin && !b_t[i] && !ALONE -> settle(t, fin, ghost, kept);       /* sent with the claim; waits for its fsync */
#else
  :: atomic { !broken[i] && fin -> settle(t, fin, ghost, kept); /* sent with the claim; waits for its fsync */
#endif
#ifndef SETTLE_ASYNC
       wait_for_disk()
#endif
     };
     if
     :: atomic { !broken[i] -> take() }                         /* the claim does not wait */
     :: atomic { broken[i] -> skip }                            /* the server crashed before it executed the claim */
     fi;
     if
     :: atomic { broken[i] -> answered = answered | kept; kept = 0; fin = 0; nt = 0; got = 0; nghost = 0 }  /* only the settlement was answered */
     :: atomic { !broken[i] -> answered = answered | kept; kept = 0; t = nt; mine = got; fin = 0; ghost = nghost; nt = 0; got = 0; nghost = 0; SAME };
        goto work
     :: atomic { broken[i] -> kept = 0; nt = 0; got = 0; nghost = 0 }
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; kept = 0; nt = 0; got = 0; nghost = 0 }
     fi
  od;
  goto left;

#ifdef BEHIND
before:                         /* learn the result of the settlement sent behind; if it was lost, send it again in a separate statement */
  if
  :: atomic { broken[i] -> RENEW; sent[i] = false; give_back_unheard(); wait_for_disk() }; goto before
  :: atomic { !broken[i] && !sent[i] -> x = 0;
#ifndef UNSURE
       if :: b_fin[i] & ~b_kept[i] -> settle(b_t[i], b_fin[i], b_ghost[i], kept); wait_for_disk() :: else fi
#endif
     };
     if
     :: atomic { broken[i] -> kept = 0 }; goto before
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; kept = 0 }; goto before
     :: atomic { !broken[i] ->
          answered = answered | b_kept[i] | kept; kept = 0;
          b_t[i] = 0; b_fin[i] = 0; b_ghost[i] = 0; b_kept[i] = 0 }
     fi
  fi;
  if :: working -> goto work :: else -> goto again fi;
#endif

alone:                          /* settle the finished jobs in a separate statement; repeat it after each break of the session */
#ifdef BEHIND
  if :: b_t[i] -> working = mine; goto before :: else fi;
#endif
  if
  :: atomic { broken[i] -> RENEW; give_back_unheard(); wait_for_disk() }; goto alone
  :: atomic { !broken[i] -> settle(t, fin, ghost, kept);
#ifndef SETTLE_ASYNC
       wait_for_disk()
#endif
     };
     if
     :: atomic { broken[i] -> kept = 0 }; goto alone
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; kept = 0 }; goto alone
     :: atomic { !broken[i] ->
          answered = answered | kept;
#ifndef REUNITES
          lost = fin & ~kept;                                   /* no further job of this claim starts */
#endif
          fin = 0; kept = 0 }
     fi
  fi;

#ifndef FORGETS_REST
back:                           /* the claim is lost, or its settlement was only sent twice: release the unstarted jobs */
  if
  :: !lost || !mine
  :: atomic { lost && mine && broken[i] -> RENEW; give_back_unheard(); wait_for_disk() }; goto back
  :: atomic { lost && mine && !broken[i] -> hand_back(); wait_for_disk() };
     if
     :: atomic { broken[i] }; goto back
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true }; goto back
     :: !broken[i]
     fi
  fi;
#endif
  if :: lost -> atomic { mine = 0; lost = false } :: else fi;

work:
  do
  :: atomic { !mine -> if :: !fin -> FORGET :: else fi; break }
  :: atomic { mine -> j = LOWEST(mine);
       require(AGAIN, !(answered & BIT(j)) || (swallowed & BIT(j)));
       require(BESIDE, !runner[j] || (swallowed & BIT(j)));
       runner[j] = i + 1 };
     atomic { if :: runner[j] == i + 1 -> runner[j] = 0 :: else fi;
       mine = mine & ~BIT(j); fin = fin | BIT(j); j = 0 };
     if
     :: true
     :: mine -> goto alone                                      /* an old outcome is settled in a separate statement */
#ifdef BEHIND
     :: mine && b_t[i] && !sent[i] -> working = true; goto before   /* before a job that may run long */
#endif
     fi
  od;
  goto again;

left:
  skip
}

#ifdef BEHIND
proctype Backend(byte i) {      /* executes the settlement sent behind, unless its session or the server ends first; it waits for its fsync */
  byte x;
end:
  do
  :: atomic { sent[i] -> settle(b_t[i], b_fin[i], b_ghost[i], b_kept[i]); wait_for_disk(); sent[i] = false }
  od
}
#endif

proctype Server() {
  byte x;
end:
  do
  :: atomic { crashes < CRASHES && !OVER -> crashes++;
       x = 1;
       do :: x <= J -> if :: db[0].claim[x] && db[0].claim[x] != db[1].claim[x] -> swallowed = swallowed | BIT(x) :: else fi; x++ :: else -> break od;
       copy(1, 0); settled = settled_durably;
#ifdef BEHIND
       sent[0] = false; sent[1] = false;
#endif
       broken[0] = true; broken[1] = true }
  od
}

proctype Monitor() { timeout -> require(LOST, OVER) }

init {
  atomic {
    run Child(0); run Child(1); run Server(); run Monitor()
#ifdef BEHIND
    ; run Backend(0); run Backend(1)
#endif
  }
}
