/* Claims that do not wait for their fsync: the server may crash and forget the latest commits, a token may be given a second time.
 *
 * Two children, two jobs, batches of one or two. The database has a volatile and a durable state. A commit that waits makes all that
 * was committed so far durable; a claim alone does not wait. The server crashes CRASHES times (the volatile state is the durable one
 * again, and every session is broken); the answer to a statement that was executed is lost BREAKS times besides (that child's session is
 * broken). A child finds its session broken when it speaks next: it opens another, gives back what it never heard of, and settles alone.
 * The settlement of the last claim and the next claim are sent together and executed one after the other: the first waits, the second
 * does not, and a crash may come between. With BEHIND they may also be sent the other way round: the claim is answered, and its jobs run while
 * the settlement behind it is executed or swallowed. That is heard of before the child speaks again, and only in the session of the claim that is
 * settled: in a later one the number may have been given anew, to the very claim in front.
 *
 * Proved within these bounds:
 *   STRANGER      a settlement is accepted from the very claim that holds the job
 *   TWICE         no two runs of a job are both settled
 *   AGAIN         a job whose settlement was answered never starts again, unless a crash has swallowed a claim of it
 *   BESIDE        a run starts beside another one only if a crash has swallowed a claim of that job
 *   LOST          every job ends
 *
 * holds:
 * holds:  CRASHES=2
 * holds:  BREAKS=2
 * holds:  BEHIND
 * wide:   CRASHES=2 BREAKS=2
 * wide:   BEHIND CRASHES=2
 * wide:   BEHIND BREAKS=2
 * breaks: TOKEN_ONLY      STRANGER  the fence is the token alone: another child may have been given it anew
 * breaks: CHILD_ASYNC     STRANGER  children are registered without waiting: two living ones may have one number
 * breaks: SETTLE_ASYNC    AGAIN     a settlement does not wait for its fsync
 * breaks: KEEPS_UNHEARD   LOST      nobody gives back a claim whose answer was lost
 * breaks: REUNITES        LOST      after a settlement that found the claim lost, the child goes on with that claim (see below)
 * breaks: FORGETS_REST    LOST      after such a settlement it forgets the rest of the claim without handing it back
 * breaks: BEHIND ANY_SESSION STRANGER  a settlement is sent behind a claim in another session than its own claim was made in
 * breaks: BEHIND WITH_A_CLAIM STRANGER  in another session than its claim was made in, a settlement travels with the next claim
 * breaks: BEHIND UNSURE   LOST      what was sent behind is not looked after again when its session is lost
 *
 * REUNITES is what the program must not do: the rest of a batch whose claim a crash has swallowed is run on under its token, the last
 * settlement of it travels with the next claim, that claim is given the same token, and its answer is lost. The child then says that
 * it holds this token, so nobody gives back what it has never heard of.
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

/* The database; [0] is what transactions see, [1] what is on disk. */
typedef Image {
  byte job[J + 1];              /* READY, ENDED, or the token of its claim */
  byte child[J + 1];            /* and the child's number */
  byte claim[J + 1];            /* ghost: the claim itself, which no crash makes come twice */
  byte tokens;
  byte children
};
Image db[2];

byte number[2];                 /* under which a child is registered */
bool broken[2];                 /* its session, and it does not know yet */
byte crashes, breaks, claims;
byte runner[J + 1];             /* ghost: child that runs it, plus one */
byte swallowed;                 /* ghost: jobs some claim of which a crash has swallowed */
byte answered;                  /* ghost: jobs whose settlement was answered */
byte settled;                   /* ghost: jobs with an accepted settlement that no crash has swallowed */
byte settled_durably;           /* ghost */
#ifdef BEHIND
byte b_t[2], b_fin[2], b_ghost[2], b_kept[2];    /* the claim before, what became of it, and what of that was accepted */
bool sent[2];                   /* it is on its way */
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

inline settle(t, fin, ghost, kept) {             /* under the fence (number, t) the jobs `fin`; `kept` are those it was accepted for */
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

inline take() {                 /* claim one, or all there are; `nt`, `got` and `nghost` are its answer */
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

inline hand_back() {            /* under the fence (number, t) the jobs `mine` */
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
  bool same, working;           /* the session is the one of the claim in hand; that claim goes on */
#endif
end:
  atomic {                      /* registered, and that waits */
    db[0].children++; number[i] = db[0].children;
#ifndef CHILD_ASYNC
    wait_for_disk()
#endif
  };
again:
  do
  :: atomic { OVER && !fin -> break }
  :: atomic { broken[i] && (SOME_READY || fin || !OVER) ->      /* it finds out, and opens another session */
       RENEW; give_back_unheard(); wait_for_disk();
       nt = 0; got = 0; nghost = 0 };
     if
#ifdef BEHIND
     :: b_t[i] -> working = false; goto before
#endif
     :: fin -> goto alone
     :: else
     fi
  :: atomic { !broken[i] && !fin && SOME_READY && CLEAR -> take() };     /* a claim alone: it does not wait */
     if
     :: atomic { !broken[i] -> t = nt; mine = got; ghost = nghost; nt = 0; got = 0; nghost = 0; SAME };
        goto work
     :: atomic { broken[i] -> nt = 0; got = 0; nghost = 0 }
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; nt = 0; got = 0; nghost = 0 }
     fi
#ifdef BEHIND
  :: !broken[i] && b_t[i] -> working = false; goto before       /* it is heard of, before anything else is said */
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
  :: atomic { !broken[i] && fin && !b_t[i] && !ALONE -> settle(t, fin, ghost, kept);       /* sent with the claim, and waits */
#else
  :: atomic { !broken[i] && fin -> settle(t, fin, ghost, kept); /* sent with the claim, and waits */
#endif
#ifndef SETTLE_ASYNC
       wait_for_disk()
#endif
     };
     if
     :: atomic { !broken[i] -> take() }                         /* the claim does not */
     :: atomic { broken[i] -> skip }                            /* the server has crashed before it came to it */
     fi;
     if
     :: atomic { broken[i] -> answered = answered | kept; kept = 0; fin = 0; nt = 0; got = 0; nghost = 0 }  /* the first answer came */
     :: atomic { !broken[i] -> answered = answered | kept; kept = 0; t = nt; mine = got; fin = 0; ghost = nghost; nt = 0; got = 0; nghost = 0; SAME };
        goto work
     :: atomic { broken[i] -> kept = 0; nt = 0; got = 0; nghost = 0 }
     :: atomic { !broken[i] && UNHEARD -> breaks++; broken[i] = true; kept = 0; nt = 0; got = 0; nghost = 0 }
     fi
  od;
  goto left;

#ifdef BEHIND
before:                         /* hear of what was sent behind; settle it alone if that was lost */
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

alone:                          /* settle what is finished, however often the session breaks */
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
          lost = fin & ~kept;                                   /* nothing more of this claim is started */
#endif
          fin = 0; kept = 0 }
     fi
  fi;

#ifndef FORGETS_REST
back:                           /* a lost claim, or one whose settlement was merely said twice: what was not started is handed back */
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
     :: mine -> goto alone                                      /* an outcome that has grown old is settled alone */
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
proctype Backend(byte i) {      /* it comes to what was sent behind, unless its session or the server has ended before; and that waits */
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
