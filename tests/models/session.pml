/* Sessions of a remote worker: two gateways, one worker, two jobs. The model shows which gateway may act for a session, and which process
 * knows the claims of a session.
 *
 * The worker has one stream at a time, to either gateway. The stream breaks BREAKS times; the gateway may notice the break at any later time.
 * The break loses what was sent and not received: a TaskBatch, a result, an acknowledgment. The worker resumes its session at either gateway
 * and names the tasks that it holds. It may also restart without memory (RESTARTS). A gateway is killed KILLS times and restarts at once. It
 * then has no sessions, and a claim that it had sent may still commit at any later time. A claim has three steps: its check, its commit and
 * its answer. Attaching a session is a transaction and an answer. A session's lease expires if no gateway renews it, or at any time for
 * EXPIRES times (the host of a gateway was frozen). A task's lease expires at any time for LAPSES times.
 * Each statement in the database is one step. A claim takes one job. Maintenance finds the rows of sessions that no longer exist.
 * Not modeled: the leases of supervisors (lease.pml), limits, several Readys.
 *
 * Proved within these bounds:
 *   ROBBED        a gateway reclaims a task or ends a session without a request only if no other gateway has attached the session since
 *   UNSTARTED     a task that is released as not started was never received, and is not received later
 *   LATE          a claim takes no job if another gateway had attached the session before the claim's check
 *   STRANGER      a settlement is accepted only from the claim that holds the job
 *   TWICE         no job is settled twice
 *   ACKED         an acknowledged result is recorded, or its claim was lost before
 *   LOST          every job reaches a final state: none stays with a session that does not know it
 *
 * holds:  BREAKS=1 LAPSES=1
 * holds:  KILLS=1 LAPSES=1
 * holds:  RESTARTS=1
 * holds:  EXPIRES=1
 * holds:  J=1 BREAKS=1 KILLS=1 LAPSES=1
 * holds:  J=1 BREAKS=2
 * holds:  J=1 BREAKS=1 RESTARTS=1
 * holds:  J=1 BREAKS=1 EXPIRES=1
 * holds:  J=1 KILLS=1 RESTARTS=1
 * breaks: BREAKS=1 LAPSES=1 ATTACH_KEEPS   ROBBED     attaching does not change `attached`, so the earlier gateway passes each check
 * breaks: BREAKS=1 LAPSES=1 NO_HOLD        ROBBED     a gateway acts without a request and does not check `attached` in its transaction (hold_session)
 * breaks: BREAKS=1 CLAIM_UNCHECKED         LATE       the claim does not check `attached`
 * breaks: BREAKS=1 KEEPS_UNHEARD           LOST       attaching releases no task that the worker does not hold, and no later search does (release_unheard)
 * breaks: KILLS=1 BREAKS=1 J=1 ONE_LOOK    LOST       only attaching releases such tasks: the claim of a killed gateway commits later
 * breaks: LOOKS_IN_CLAIM                   UNSTARTED  such tasks are searched for while a claim of this gateway is not answered
 * breaks: BREAKS=1 RELEASES_HELD           UNSTARTED  attaching releases tasks that the worker reports as held
 * breaks: RESTARTS=1 NO_LINGER_END         LOST       a session whose worker does not reconnect is kept while its gateway lives
 * breaks: BREAKS=1 ANSWER_FORGOTTEN        LOST       the answer to a claim whose stream is gone counts as known, and is not released
 * breaks: KILLS=1 ACK_FIRST                ACKED      a result is acknowledged before it is committed
 * breaks: J=1 BREAKS=1 LAPSES=1 NO_FENCE   STRANGER   a settlement checks the job and not its claim
 */
#ifndef J
#define J 2
#endif
#ifndef BREAKS
#define BREAKS 0
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef EXPIRES
#define EXPIRES 0
#endif
#ifndef LAPSES
#define LAPSES 0
#endif
#define S 6                     /* at most S - 1 sessions */
#define MOST 24                 /* tokens */

#define ROBBED    1
#define UNSTARTED 2
#define LATE      3
#define STRANGER  4
#define TWICE     5
#define ACKED     6
#define LOST      7
#ifdef ONLY
#define require(name, condition) assert((condition) || name != ONLY)
#else
#define require(name, condition) assert((condition) && name)
#endif

#define READY 0
#define ENDED 255

/* the database */
byte row[3];                    /* of job j: READY, ENDED, or its token */
byte owner[3];                  /* and its session */
byte tokens, sessions;
bool alive[S];
byte attached[S];

/* the worker */
byte conn;                      /* its stream: the number of the gateway plus one, or 0 */
byte gen;                       /* the number of the stream */
bool welcome;
byte mine;                      /* its session */
byte has[3];                    /* of job j: the token under which the worker runs it, or 0 */
bool said[3];                   /* the result was sent on this stream */

/* the gateways: `attached` of each session that a gateway has; [session * 2 + gateway] */
byte att[S * 2];
byte heard[6], h_of[6];         /* of job j: the token that the gateway knows, and the session; [j * 2 + gateway] */
byte at_gen[2], at_s[2];        /* its open stream, and the session of this stream */
byte c_step[2], c_s[2], c_a[2], c_gen[2], c_j[2], c_t[2];  /* the claim that was sent and not answered */
bool x_step[2];                 /* a session is attached, and the answer is not received */
byte x_s[2], x_a[2], x_gen[2], x_row[6];
byte s_step[2], s_j[2], s_t[2], s_gen[2];                  /* a result on its way to the database and back */
byte z_s;                       /* session of the claim of a killed gateway that may still commit */

byte breaks, kills, restarts, expires, lapses;

/* ghosts */
byte where[S];                  /* the gateway that attached the session last, plus one */
bool current[2];                /* this gateway had attached the session last when its claim was checked */
bool got[MOST], freed[MOST];    /* by token: the worker has received the task; the task was released as not started */

#define ATT(s) att[(s) * 2 + g]
#define HEARD(j) heard[(j) * 2 + g]
#define H_OF(j) h_of[(j) * 2 + g]
#define LINKED(n) (conn == g + 1 && gen == (n) && (n))
#define SOME_READY (row[1] == READY || row[2] == READY)
#ifdef NO_HOLD
#define HOLD(s) alive[s]
#else
#define HOLD(s) (alive[s] && attached[s] == ATT(s))
#endif
#ifdef NO_FENCE
#define HELD(j, t) (row[j] != READY && row[j] != ENDED)
#else
#define HELD(j, t) (row[j] == (t))
#endif

inline back(j) { row[j] = READY; owner[j] = 0 }
inline unstarted(j) { require(UNSTARTED, !got[row[j]]); freed[row[j]] = true; back(j) }

inline cut() { conn = 0; welcome = false; said[1] = false; said[2] = false }
inline lose() { breaks < BREAKS; breaks++; cut() }      /* the stream breaks, and what was sent does not arrive */

inline end_lease(s) {                                   /* reclaim */
  alive[s] = false;
  if :: owner[1] == s && row[1] != ENDED -> back(1) :: else fi;
  if :: owner[2] == s && row[2] != ENDED -> back(2) :: else fi
}

inline forget(s) {                                      /* an open stream is ended with ABORTED */
  ATT(s) = 0;
  if :: H_OF(1) == s -> HEARD(1) = 0; H_OF(1) = 0 :: else fi;
  if :: H_OF(2) == s -> HEARD(2) = 0; H_OF(2) = 0 :: else fi;
  if
  :: at_gen[g] && at_s[g] == s ->
     if :: LINKED(at_gen[g]) -> cut() :: else fi;
     at_gen[g] = 0; at_s[g] = 0
  :: else
  fi
}

inline take(s, t, j) {                                  /* the commit of a claim */
  t = 0; j = 0;
  if
  :: SOME_READY ->
     assert(tokens < MOST - 1);
     tokens++; t = tokens;
     if :: row[1] == READY -> j = 1 :: row[2] == READY -> j = 2 fi;
     row[j] = t; owner[j] = s
  :: else
  fi
}

inline attach_job(j) {
  if
#ifdef RELEASES_HELD
  :: owner[j] == s && row[j] != ENDED -> unstarted(j)
#elif !defined(KEEPS_UNHEARD)
  :: owner[j] == s && row[j] != ENDED && row[j] != has[j] -> unstarted(j)
#endif
  :: else
  fi;
  x_row[j * 2 + g] = (owner[j] == s && row[j] == has[j] && has[j] -> row[j] : 0)
}

inline learn(j) {
  if
  :: x_row[j * 2 + g] -> HEARD(j) = x_row[j * 2 + g]; H_OF(j) = s
  :: !x_row[j * 2 + g] && H_OF(j) == s -> HEARD(j) = 0; H_OF(j) = 0
  :: else
  fi;
  if :: LINKED(x_gen[g]) && has[j] != x_row[j * 2 + g] -> has[j] = 0 :: else fi;
  x_row[j * 2 + g] = 0
}

#define UNHEARD(j) (owner[j] && row[j] != ENDED && ATT(owner[j]) && row[j] != HEARD(j))
#ifdef LOOKS_IN_CLAIM
#define CLAIMS(s) false
#else
#define CLAIMS(s) (c_step[g] && c_s[g] == (s))
#endif

inline look(j) {                                        /* release_unheard; a claim waits until this search has finished */
  s = owner[j];
  if
  :: HOLD(s) -> unstarted(j)
  :: else -> forget(s)
  fi;
  s = 0
}

inline lapse(j) {
  lapses++; s = H_OF(j);
  if
  :: HOLD(s) ->
     if :: row[j] == HEARD(j) -> require(ROBBED, where[s] == g + 1); back(j) :: else fi;
     if :: LINKED(at_gen[g]) && has[j] == HEARD(j) -> has[j] = 0 :: else fi;       /* Cancel(LOST) */
     HEARD(j) = 0; H_OF(j) = 0
  :: else -> forget(s)
  fi;
  s = 0
}

inline report(j) {
  said[j] = true; s_step[g] = 1; s_j[g] = j; s_t[g] = has[j]; s_gen[g] = gen;
#ifdef ACK_FIRST
  require(ACKED, row[j] != has[j]); has[j] = 0
#endif
}

#define IDLE(s) (ATT(s) && !(at_gen[g] && at_s[g] == (s)) && !(x_step[g] && x_s[g] == (s)))
#define STALE(s) (ATT(s) && !(alive[s] && attached[s] == ATT(s)))

proctype Gateway(byte g) {
  byte s, i;
end:
  do
  /* Hello: open or attach, one transaction ... */
  :: atomic { conn == g + 1 && !welcome && !x_step[g] && at_gen[g] != gen ->
       at_gen[g] = 0; at_s[g] = 0;
       if
       :: mine && alive[mine] -> s = mine;
#ifndef ATTACH_KEEPS
          attached[s]++
#endif
       :: else -> assert(sessions < S - 1); sessions++; s = sessions; alive[s] = true; attached[s] = 1
       fi;
       where[s] = g + 1;
       attach_job(1); attach_job(2);
       x_step[g] = true; x_s[g] = s; x_a[g] = attached[s]; x_gen[g] = gen; s = 0 }
  /* ... and its answer; HelloAck names the lost tasks */
  :: atomic { x_step[g] -> s = x_s[g];
       ATT(s) = x_a[g]; at_gen[g] = x_gen[g]; at_s[g] = s;
       learn(1); learn(2);
       if :: LINKED(x_gen[g]) -> welcome = true; mine = s :: else fi;
       x_step[g] = false; x_s[g] = 0; x_a[g] = 0; x_gen[g] = 0; s = 0 }
  :: atomic { at_gen[g] && !LINKED(at_gen[g]) -> at_gen[g] = 0; at_s[g] = 0 }      /* the gateway notices the break */
  /* a claim: its check, its commit, its answer */
  :: atomic { at_gen[g] && !c_step[g] && SOME_READY ->
       s = at_s[g];
#ifdef CLAIM_UNCHECKED
       if
       :: alive[s] ->
#else
       if
       :: alive[s] && attached[s] == ATT(s) ->
#endif
          c_step[g] = 1; c_s[g] = s; c_a[g] = ATT(s); c_gen[g] = at_gen[g]; current[g] = (where[s] == g + 1)
       :: else -> forget(s)
       fi;
       s = 0 }
  :: atomic { c_step[g] == 1 ->
       take(c_s[g], c_t[g], c_j[g]);
       require(LATE, !c_t[g] || current[g]);
       current[g] = false;
       c_step[g] = (c_t[g] -> 2 : 0) }
  :: atomic { c_step[g] == 2 ->
       i = c_j[g];
       if
       :: at_gen[g] == c_gen[g] && at_s[g] == c_s[g] && ATT(c_s[g]) == c_a[g] ->
          HEARD(i) = c_t[g]; H_OF(i) = c_s[g];
          if
          :: LINKED(c_gen[g]) -> has[i] = c_t[g]; got[c_t[g]] = true; require(UNSTARTED, !freed[c_t[g]])
          :: LINKED(c_gen[g]) && breaks < BREAKS -> lose()
          :: !LINKED(c_gen[g])
          fi
       :: else ->
#ifdef ANSWER_FORGOTTEN
          if :: ATT(c_s[g]) -> HEARD(i) = c_t[g]; H_OF(i) = c_s[g] :: else fi
#else
          if :: row[i] == c_t[g] -> unstarted(i) :: else fi
#endif
       fi;
       c_step[g] = 0; c_s[g] = 0; c_a[g] = 0; c_gen[g] = 0; c_j[g] = 0; c_t[g] = 0; i = 0 }
  /* a result: its arrival, its commit, its acknowledgment */
  :: atomic { welcome && LINKED(at_gen[g]) && !s_step[g] && has[1] && !said[1] -> report(1) }
  :: atomic { welcome && LINKED(at_gen[g]) && !s_step[g] && has[2] && !said[2] -> report(2) }
  :: atomic { s_step[g] == 1 ->
       i = s_j[g];
       if
       :: HELD(i, s_t[g]) -> require(STRANGER, row[i] == s_t[g]); row[i] = ENDED; owner[i] = 0
       :: else
       fi;
       if :: HEARD(i) == s_t[g] -> HEARD(i) = 0; H_OF(i) = 0 :: else fi;
       s_step[g] = 2; i = 0 }
  :: atomic { s_step[g] == 2 ->
       i = s_j[g];
       if
       :: LINKED(s_gen[g]) && breaks < BREAKS -> lose()
       :: LINKED(s_gen[g]) -> if :: has[i] == s_t[g] -> require(ACKED, row[i] != has[i]); has[i] = 0 :: else fi
       :: !LINKED(s_gen[g])
       fi;
       s_step[g] = 0; s_j[g] = 0; s_t[g] = 0; s_gen[g] = 0; i = 0 }
  /* steps that a gateway takes without a request */
  :: atomic { lapses < LAPSES && HEARD(1) && !(s_step[g] == 1 && s_j[g] == 1) -> lapse(1) }
  :: atomic { lapses < LAPSES && HEARD(2) && !(s_step[g] == 1 && s_j[g] == 2) -> lapse(2) }
#if !defined(KEEPS_UNHEARD) && !defined(ONE_LOOK)
  :: atomic { UNHEARD(1) && !CLAIMS(owner[1]) -> look(1) }
  :: atomic { UNHEARD(2) && !CLAIMS(owner[2]) -> look(2) }
#endif
  :: atomic { (IDLE(1) || IDLE(2) || IDLE(3) || IDLE(4) || IDLE(5)) ->
       if :: IDLE(1) -> s = 1 :: IDLE(2) -> s = 2 :: IDLE(3) -> s = 3 :: IDLE(4) -> s = 4 :: IDLE(5) -> s = 5 fi;
       if
       :: !HOLD(s) -> forget(s); s = 0
#ifndef NO_LINGER_END
       :: HOLD(s) -> require(ROBBED, where[s] == g + 1); end_lease(s); forget(s); s = 0
#endif
       fi }
  :: atomic { (STALE(1) || STALE(2) || STALE(3) || STALE(4) || STALE(5)) ->        /* a renewal finds that another gateway has the session */
       if :: STALE(1) -> s = 1 :: STALE(2) -> s = 2 :: STALE(3) -> s = 3 :: STALE(4) -> s = 4 :: STALE(5) -> s = 5 fi;
       forget(s); s = 0 }
  :: atomic { kills < KILLS -> kills++;
       if :: c_step[g] == 1 && !z_s -> z_s = c_s[g] :: true fi;
       s = 1;
       do :: s < S -> ATT(s) = 0; s++ :: else -> break od;
       HEARD(1) = 0; H_OF(1) = 0; HEARD(2) = 0; H_OF(2) = 0; x_row[2 + g] = 0; x_row[4 + g] = 0;
       c_step[g] = 0; c_s[g] = 0; c_a[g] = 0; c_gen[g] = 0; c_j[g] = 0; c_t[g] = 0; current[g] = false;
       x_step[g] = false; x_s[g] = 0; x_a[g] = 0; x_gen[g] = 0;
       s_step[g] = 0; s_j[g] = 0; s_t[g] = 0; s_gen[g] = 0;
       at_gen[g] = 0; at_s[g] = 0; s = 0;
       if :: conn == g + 1 -> cut() :: else fi }
  od
}

active proctype Worker() {
end:
  do
  :: atomic { !conn -> gen++; if :: conn = 1 :: conn = 2 fi }
  :: atomic { conn && breaks < BREAKS -> lose() }
  :: atomic { restarts < RESTARTS -> restarts++; cut(); mine = 0; has[1] = 0; has[2] = 0 }
  od
}

#define RENEWED(s) (att[(s) * 2] == attached[s] || att[(s) * 2 + 1] == attached[s] || (x_step[0] && x_s[0] == (s)) || (x_step[1] && x_s[1] == (s)))
#define DUE(s) (alive[s] && (!RENEWED(s) || expires < EXPIRES))

active proctype Database() {
  byte s, t, j;
  atomic { row[2] = (J == 2 -> READY : ENDED); run Gateway(0); run Gateway(1) }
end:
  do
  :: atomic { z_s -> if :: take(z_s, t, j) :: true fi; z_s = 0; t = 0; j = 0 }     /* the last claim of a killed gateway commits or never commits */
  :: atomic { owner[1] && row[1] != ENDED && !alive[owner[1]] -> back(1) }
  :: atomic { owner[2] && row[2] != ENDED && !alive[owner[2]] -> back(2) }
  :: atomic { (DUE(1) || DUE(2) || DUE(3) || DUE(4) || DUE(5)) ->
       if :: DUE(1) -> s = 1 :: DUE(2) -> s = 2 :: DUE(3) -> s = 3 :: DUE(4) -> s = 4 :: DUE(5) -> s = 5 fi;
       if :: RENEWED(s) -> expires++ :: else fi;
       end_lease(s); s = 0 }
  od
}

active proctype Monitor() {     /* no process can take a step */
  timeout -> require(LOST, row[1] == ENDED && row[2] == ENDED)
}
