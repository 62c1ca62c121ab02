/* Claims that do not wait for their fsync: a crash of the server discards the latest commits, and a token may be assigned twice.
 *
 * Two workers, two jobs, claims of one or two jobs. The database has a volatile and a durable state. A commit that waits makes all earlier
 * commits durable; only a claim does not wait. The server crashes CRASHES times: the volatile state becomes the durable one again, and
 * every session breaks. In addition, the answer to an executed statement is lost BREAKS times, and the worker's session breaks. A worker
 * finds its session broken at its next statement. It then opens another session, releases claims whose answers it did not receive, and
 * settles separately. The settlement of the last claim and the next claim are sent together and executed one after the other: the first
 * waits, the second does not, and a crash may come between. With BEHIND they may also be sent in reverse order: the claim is answered,
 * and its jobs run while the settlement behind it is executed or discarded. The worker receives that answer before its next statement,
 * and only in the session of the settled claim: in a later session, the new claim may have been assigned the same token.
 *
 * Proved within these bounds:
 *   STRANGER      a settlement is accepted from the very claim that holds the job
 *   TWICE         no two attempts of a job are both settled
 *   AGAIN         a job whose settlement was answered never starts again, unless a crash has discarded a claim of it
 *   BESIDE        an attempt starts during another one only if a crash has discarded a claim of that job
 *   LOST          every job ends
 *
 * holds:
 * holds:  CRASHES=2
 * holds:  BREAKS=2
 * holds:  BEHIND
 * wide:   CRASHES=2 BREAKS=2
 * wide:   BEHIND CRASHES=2
 * wide:   BEHIND BREAKS=2
 * breaks: TOKEN_ONLY      STRANGER  the fence is only the token: another worker may have been assigned the same one
 * breaks: CHILD_ASYNC     STRANGER  workers are registered without waiting: two living workers may have the same number
 * breaks: SETTLE_ASYNC    AGAIN     a settlement does not wait for its fsync
 * breaks: KEEPS_UNHEARD   LOST      no process releases a claim whose answer was lost
 * breaks: REUNITES        LOST      after a settlement that found the claim lost, the worker continues that claim (see below)
 * breaks: FORGETS_REST    LOST      after such a settlement the worker forgets the rest of the claim and does not release it
 * breaks: BEHIND ANY_SESSION STRANGER  a settlement is sent behind a claim in another session than its own claim was made in
 * breaks: BEHIND WITH_A_CLAIM STRANGER  in another session than its claim was made in, a settlement is sent with the next claim
 * breaks: BEHIND UNSURE   LOST      a settlement that was sent behind is not repeated when its session is lost
 *
 * The program must not do REUNITES: a worker runs the rest of a claim that a crash has discarded under its token, and sends the last
 * settlement with the next claim. That claim is assigned the same token, and its answer is lost. The worker then reports that it holds
 * this token, so no process releases the claim whose answer the worker did not receive.
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

/* The database: transactions see [0], and [1] is on disk. */
typedef Image {
  byte job[J + 1];              /* READY, ENDED, or the token of its claim */
  byte child[J + 1];            /* and the worker's number */
  byte claim[J + 1];            /* ghost: a unique number of the claim, also after a crash */
  byte tokens;
  byte children
};
Image db[2];

byte number[2];                 /* under which a worker is registered */
bool broken[2];                 /* its session, which the worker has not noticed yet */
byte crashes, breaks, claims;
byte runner[J + 1];             /* ghost: worker that runs it, plus one */
byte swallowed;                 /* ghost: jobs of which a crash has discarded a claim */
byte answered;                  /* ghost: jobs whose settlement was answered */
byte settled;                   /* ghost: jobs with an accepted settlement that no crash has discarded */
byte settled_durably;           /* ghost */
#ifdef BEHIND
byte b_t[2], b_fin[2], b_ghost[2], b_kept[2];    /* the claim before, its outcomes, and the accepted outcomes */
bool sent[2];                   /* the settlement is on its way */
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

inline settle(t, fin, ghost, kept) {             /* settle the jobs `fin` under the fence (number, t); `kept` are the accepted ones */
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

inline take() {                 /* claim one job or all ready jobs; `nt`, `got` and `nghost` are the answer */
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
  bool same, working;           /* the session is that of the current claim; that claim continues */
#endif
end:
  atomic {                      /* registration, which waits for the disk */
    db[0].children++; number[i] = db[0].children;
#ifndef CHILD_ASYNC
    wait_for_disk()
#endif
  };
again:
  do
  :: atomic { OVER && !fin -> break }
  :: atomic { broken[i] && (SOME_READY || fin || !OVER) ->      /* the worker notices, and opens another session */
       RENEW; give_back_unheard(); wait_for_disk();
       nt = 0; got = 0; nghost = 0 };
     if
#ifdef BEHIND
     :: b_t[i] -> working = false; goto before
#endif
     :: fin -> goto alone
     :: else
     fi
  :: atomic { !broken[i] && !fin && SOME_READY && CLEAR -> take() };     /* a separate claim: it does not wait */
     if
     :: atomic { !broken[i] -> t = nt; mine = got; ghost = nghost; nt = 0; got = 0; nghost = 0; SAME };
        goto work
     :: atomic { broken[i] -> nt = 0; got = 0; nghost = 0 }
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; nt = 0; got = 0; nghost = 0 }
     fi
#ifdef BEHIND
  :: !broken[i] && b_t[i] -> working = false; goto before       /* receive its answer before the next statement */
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
  :: atomic { !broken[i] && !b_t[i] && fin && SOME_READY && MAY -> take() };     /* claim, and the settlement behind it */
     if
     :: atomic { !broken[i] ->
          b_t[i] = t; b_fin[i] = fin; b_ghost[i] = ghost; sent[i] = true;
          t = nt; mine = got; fin = 0; ghost = nghost; nt = 0; got = 0; nghost = 0; same = true };
        goto work
     :: atomic { broken[i] -> nt = 0; got = 0; nghost = 0 }
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; nt = 0; got = 0; nghost = 0 }
     fi
  :: atomic { !broken[i] && fin && !b_t[i] && !ALONE -> settle(t, fin, ghost, kept);       /* sent with the claim, and waits for the disk */
#else
  :: atomic { !broken[i] && fin -> settle(t, fin, ghost, kept); /* sent with the claim, and waits for the disk */
#endif
#ifndef SETTLE_ASYNC
       wait_for_disk()
#endif
     };
     if
     :: atomic { !broken[i] -> take() }                         /* the claim does not wait */
     :: atomic { broken[i] -> skip }                            /* the server has crashed before it executed the claim */
     fi;
     if
     :: atomic { broken[i] -> answered = answered | kept; kept = 0; fin = 0; nt = 0; got = 0; nghost = 0 }  /* the first answer arrived */
     :: atomic { !broken[i] -> answered = answered | kept; kept = 0; t = nt; mine = got; fin = 0; ghost = nghost; nt = 0; got = 0; nghost = 0; SAME };
        goto work
     :: atomic { broken[i] -> kept = 0; nt = 0; got = 0; nghost = 0 }
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; kept = 0; nt = 0; got = 0; nghost = 0 }
     fi
  od;
  goto left;

#ifdef BEHIND
before:                         /* receive the answer of the settlement behind; settle separately if it was lost */
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

alone:                          /* settle the finished jobs, however often the session breaks */
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
          lost = fin & ~kept;                                   /* no more job of this claim is started */
#endif
          fin = 0; kept = 0 }
     fi
  fi;

#ifndef FORGETS_REST
back:                           /* a lost claim, or one whose settlement was sent twice: unstarted jobs are released */
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
     :: mine -> goto alone                                      /* an old outcome is settled separately */
#ifdef BEHIND
     :: mine && b_t[i] && !sent[i] -> working = true; goto before   /* before a job that may be long */
#endif
     fi
  od;
  goto again;

left:
  skip
}

#ifdef BEHIND
proctype Backend(byte i) {      /* executes the settlement behind unless its session or the server has ended; waits for the disk */
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
