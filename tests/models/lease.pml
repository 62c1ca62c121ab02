/* The lease: two supervisors, each with a worker, one job, and a clock. Which claims, reclaims and settlements are valid.
 *
 * Time is the remaining time: LEASE ticks of each lease by the database's clock, and of each deadline by the monotonic clock of its host.
 * Both clocks run equally fast. All other steps take any time, so a slow network and a frozen host are a delay between two steps.
 * TICKS pass while both hosts live. Afterwards time stands still for living hosts, and only the lease of a dead host expires.
 * At most one host dies, and the database is unavailable at most OUTAGES times. A claim has two steps, its snapshot and its commit: a
 * reclaim in between does not see it. A host has one worker process after another. batch.pml has the shared memory.
 *
 * Proved within these bounds:
 *   LATE          a worker sends no claim once the lease has expired by the database's clock
 *   LAPSED        the database executes no claim under an expired lease, however late the statement arrives
 *   ROBBED        no supervisor with a valid lease is reclaimed
 *   STRANGER      a settlement is accepted only from the claim that holds the job
 *   TWICE         no two attempts of the job are both settled
 *   LOST          the job ends
 * with EXCLUSIVE (a kind whose attempts are ended before the deadline, by a timer that fires in time):
 *   SIDE_BY_SIDE  no attempt starts during another one. Without it two attempts may overlap after an expiry; STRANGER still holds
 * with PROMPT (each living supervisor renews in time whenever the database is available):
 *   EVICTED       no living supervisor is ever reclaimed, also not after an outage that was longer than the lease
 *
 * holds:
 * holds:  EXCLUSIVE
 * holds:  PROMPT OUTAGES=1
 * wide:   LEASE=3 TICKS=4
 * breaks: NO_DEADLINE           LATE          the worker does not check the deadline
 * breaks: FROM_ANSWER           LATE          the deadline counts from the answer to the renewal and not from before its sending
 * breaks: CLAIM_UNCHECKED       LAPSED        the claim does not check the lease itself
 * breaks: RECLAIM_UNCHECKED     ROBBED        expired supervisors are searched first and deleted later, without a second check
 * breaks: NO_FENCE              STRANGER      a settlement checks the job and not its claim
 * breaks: REOPENS               TWICE         a settlement does not even check whether the job still runs
 * breaks: NO_RECLAIM            LOST          no supervisor reclaims the jobs of a dead one
 * breaks: NO_ORPHANS            LOST          no process searches for rows of unregistered workers
 * breaks: EXCLUSIVE FROM_ANSWER SIDE_BY_SIDE  as above
 * breaks: EXCLUSIVE OLD_CHILD   SIDE_BY_SIDE  a worker continues under the lease of its supervisor's next registration
 * breaks: PROMPT OUTAGES=1 NO_PATIENCE EVICTED  after an outage, expired leases are reclaimed at once
 */
#ifndef LEASE
#define LEASE 2
#endif
#ifndef TICKS
#define TICKS 4
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef OUTAGES
#define OUTAGES 0
#endif

#define LATE         1
#define LAPSED       2
#define ROBBED       3
#define STRANGER     4
#define TWICE        5
#define LOST         6
#define SIDE_BY_SIDE 7
#define EVICTED      8
#ifdef ONLY
#define require(name, condition) assert((condition) || name != ONLY)
#else
#define require(name, condition) assert((condition) && name)
#endif

#define READY 0
#define ENDED 255

/* the database: supervisors and running */
bool up = true;
byte up_for = LEASE;            /* ticks since it is available, at most LEASE */
bool row_of[2];                 /* supervisor s is registered ... */
byte id[2];                     /* ... with this id; a worker uses the registration under which it was forked */
byte left[2];                   /* ticks of its lease */
byte job = READY;               /* or ENDED, or the token of its claim */
byte holder, holder_id;         /* of the claim: the host, and the registration */
bool committed;                 /* the claim is visible to others */
byte tokens;

/* the hosts */
bool alive[2] = true;
byte known[2];                  /* the registration that the supervisor believes to have; 0: none */
byte deadline[2];               /* in the control block, for the workers */
bool asked[2];                  /* a renewal or a registration is on its way */
byte age[2];                    /* ticks since it was sent, at most LEASE */
bool running[2];                /* the worker runs the job's code */
byte ticks, deaths, outages;
byte settled;                   /* ghost */

#define OURS(s, i) (row_of[s] && id[s] == (i))
#define OVER (job == ENDED)

#ifdef EXCLUSIVE
#define MARGIN 1                /* ticks before the deadline in which an attempt is ended, and none is started */
#else
#define MARGIN 0
#endif
#ifdef NO_DEADLINE
#define IN_LEASE(s) true
#else
#define IN_LEASE(s) (deadline[s] > MARGIN)
#endif
#ifdef CLAIM_UNCHECKED
#define GRANTED(s, i) true
#else
#define GRANTED(s, i) (OURS(s, i) && left[s])
#endif
#ifdef NO_FENCE
#define HELD (job != READY && !OVER)
#else
#define HELD (job == token && holder == s && holder_id == seat)
#endif
#ifdef REOPENS
#define SETTLES true
#else
#define SETTLES HELD
#endif

inline give_back() { job = READY; holder = 0; holder_id = 0; committed = false }

inline take_over(o) {           /* one transaction: supervisor, workers, visible rows */
  require(ROBBED, row_of[o] && left[o] == 0);
#ifdef PROMPT
  require(EVICTED, !alive[o]);
#endif
  if
  :: job != READY && !OVER && committed && holder == o && row_of[o] && holder_id == id[o] -> give_back()
  :: else
  fi;
  row_of[o] = false
}

#ifdef NO_PATIENCE
#define PATIENT true
#else
#define PATIENT (up_for == LEASE)
#endif

proctype Supervisor(byte s) {
  bool yes;
end:
  do
  :: atomic { !alive[s] || OVER -> break }
  :: atomic { alive[s] && up && !asked[s] && (!known[s] || left[s] < LEASE || deadline[s] < LEASE) -> asked[s] = true; age[s] = 0 };       /* sent */
     if
     :: atomic { up && asked[s] ->                            /* executed */
          if
          :: !known[s] -> id[s]++; row_of[s] = true; left[s] = LEASE; yes = true
          :: known[s] && OURS(s, known[s]) -> left[s] = LEASE; yes = true
          :: else -> yes = false
          fi };
        if
        :: atomic { asked[s] ->                               /* answered */
             if
#ifdef FROM_ANSWER
             :: yes -> deadline[s] = LEASE; known[s] = id[s]
#else
             :: yes -> deadline[s] = LEASE - age[s]; known[s] = id[s]
#endif
             :: !yes -> deadline[s] = 0; known[s] = 0
             fi;
             asked[s] = false; age[s] = 0; yes = false }
        :: atomic { !asked[s] -> yes = false }                /* the answer is lost */
        fi
     :: atomic { !asked[s] }                                  /* the statement is lost */
     fi
#ifndef NO_RECLAIM
  :: atomic { alive[s] && up && known[s] && row_of[1 - s] && left[1 - s] == 0 && PATIENT ->
#ifdef RECLAIM_UNCHECKED
       skip };
     atomic { up && row_of[1 - s] ->
#endif
       take_over(1 - s) }
#endif
#ifndef NO_ORPHANS
  :: atomic { alive[s] && up && known[s] && job != READY && !OVER && committed && !OURS(holder, holder_id) -> give_back() }
#endif
  od
}

proctype Child(byte s) {
  byte seat, token;
end:
  do
  :: atomic { !alive[s] || OVER -> break }
  :: atomic { alive[s] && known[s] && job == READY && IN_LEASE(s) -> seat = known[s]; require(LATE, OURS(s, seat) && left[s]) };  /* the claim is sent */
     if
     :: atomic { up && job == READY && GRANTED(s, seat) ->    /* it acquires its locks */
          require(LAPSED, OURS(s, seat) && left[s]);
          assert(tokens < 200); tokens++; token = tokens; job = token; holder = s; holder_id = seat; committed = false };
        if
        :: atomic { job == token -> committed = true }        /* it commits */
        :: atomic { job != token -> token = 0 }               /* or is rolled back by an outage */
        fi
     :: atomic { !up || job != READY || !OURS(s, seat) || !left[s] -> token = 0 }                       /* no job to claim */
     fi;
     if
     :: atomic { !token || !alive[s] }
     :: atomic { token && alive[s] ->                         /* its code runs */
#ifdef EXCLUSIVE
          if
#ifdef OLD_CHILD
          :: deadline[s] <= MARGIN -> skip
#else
          :: deadline[s] <= MARGIN || known[s] != seat -> skip         /* the job is released instead */
#endif
          :: else -> require(SIDE_BY_SIDE, !running[1 - s]); running[s] = true
          fi
#else
          running[s] = true
#endif
        };
        if
        :: atomic { running[s] -> running[s] = false };       /* it returns: settled as soon as the database is available */
           if
           :: atomic { alive[s] && up ->
                if
                :: SETTLES ->
                   require(STRANGER, job == token && holder == s && holder_id == seat);
                   settled++; require(TWICE, settled == 1);
                   give_back(); job = ENDED
                :: else
                fi }
           :: !alive[s]
           fi
#ifdef EXCLUSIVE
        :: atomic { running[s] && deadline[s] <= MARGIN -> running[s] = false };                             /* its timer fires: released */
           goto back
        :: atomic { !running[s] && alive[s] };                /* it was not started */
back:      if
           :: atomic { alive[s] && up -> if :: job == token && holder == s && holder_id == seat -> give_back() :: else fi }
           :: !alive[s]
           fi
#endif
        :: !alive[s]
        fi
     fi;
     atomic { seat = 0; token = 0 }
  od
}

#define LESS(what, s) what[s] = (what[s] -> what[s] - 1 : 0)
#define AGES(s) age[s] = (asked[s] && age[s] < LEASE -> age[s] + 1 : age[s])
#ifdef EXCLUSIVE
#define IN_TIME(s) (!(running[s] && deadline[s] <= MARGIN))        /* the worker's timer fires before that */
#else
#define IN_TIME(s) true
#endif
#ifdef PROMPT
#define BEATS(s) (!alive[s] || !up || ((left[s] > 1 || !row_of[s] || up_for < LEASE) && !(up_for == LEASE - 1 && row_of[s] && left[s] <= 1)))
#else
#define BEATS(s) true
#endif

proctype Clock() {
end:
  do
  :: atomic { OVER -> break }
  :: atomic { !OVER && ticks < TICKS && IN_TIME(0) && IN_TIME(1) && BEATS(0) && BEATS(1) ->
       ticks++; LESS(left, 0); LESS(left, 1); LESS(deadline, 0); LESS(deadline, 1); AGES(0); AGES(1);
       if :: up && up_for < LEASE -> up_for++ :: else fi }
  :: atomic { !OVER && ticks == TICKS && !alive[0] && left[0] -> left[0]-- }
  :: atomic { !OVER && ticks == TICKS && up && up_for < LEASE && BEATS(0) && BEATS(1) -> up_for++ }
  od
}

proctype Trouble() {
end:
  do
  :: atomic { OVER -> break }
  :: atomic { !OVER && deaths < DEATHS && alive[0] -> deaths++; alive[0] = false; running[0] = false; deadline[0] = 0;
       if :: asked[0] -> asked[0] = false; age[0] = 0 :: else fi; known[0] = 0 }
  :: atomic { !OVER && outages < OUTAGES && up -> outages++; up = false; up_for = 0; asked[0] = false; asked[1] = false; age[0] = 0; age[1] = 0;
       if :: job != READY && !committed -> give_back() :: else fi }
  :: atomic { !up -> up = true }
  od
}

proctype Monitor() { timeout -> require(LOST, OVER) }

init { atomic { run Supervisor(0); run Supervisor(1); run Child(0); run Child(1); run Clock(); run Trouble(); run Monitor() } }
