/* The lease: two supervisors, each with one worker (`Child`), one job, and a clock. The model shows who may claim, who may reclaim, and whose
 * settlement is accepted.
 *
 * Time is stored as ticks that remain: of each lease by the database's clock, and of each deadline by the monotonic clock of its host. Both
 * start at LEASE and run equally fast. Every other step may take any time, so a slow network and a frozen host are delays between two steps.
 * TICKS pass while both hosts live. Afterwards only the lease of a dead host continues to expire.
 * At most one host dies, and the database becomes unavailable at most OUTAGES times. A claim has two steps: it reads, and it commits. A
 * reclaim between the two does not see the claim. The workers of a host run one after another. Shared memory is in batch.pml.
 *
 * Proved within these bounds:
 *   LATE          a worker sends no claim after the lease has expired by the database's clock
 *   LAPSED        the database executes no claim under an expired lease, however late the statement arrives
 *   ROBBED        no supervisor with a valid lease has its jobs reclaimed
 *   STRANGER      a settlement is accepted only from the claim that holds the job
 *   TWICE         at most one attempt of the job is settled
 *   LOST          the job reaches a final state
 * with EXCLUSIVE (a kind whose attempts end before the deadline, by a timer that fires in time):
 *   SIDE_BY_SIDE  no attempt starts while another one runs. Without EXCLUSIVE two attempts may overlap after a lease expires; STRANGER holds
 * with PROMPT (each live supervisor renews its lease in time while the database is available):
 *   EVICTED       no live supervisor's jobs are reclaimed, even after an outage longer than the lease
 *
 * holds:
 * holds:  EXCLUSIVE
 * holds:  PROMPT OUTAGES=1
 * wide:   LEASE=3 TICKS=4
 * breaks: NO_DEADLINE           LATE          the worker does not check the deadline
 * breaks: FROM_ANSWER           LATE          the deadline counts from the answer to the renewal, not from before it was sent
 * breaks: CLAIM_UNCHECKED       LAPSED        the claim does not check the lease in the database
 * breaks: RECLAIM_UNCHECKED     ROBBED        expired leases are read first and deleted later, without a second check
 * breaks: NO_FENCE              STRANGER      a settlement checks the job and not its claim
 * breaks: REOPENS               TWICE         a settlement does not check whether the job is still running
 * breaks: NO_RECLAIM            LOST          no supervisor reclaims the jobs of a dead one
 * breaks: NO_ORPHANS            LOST          no supervisor searches for rows of workers that are not registered
 * breaks: EXCLUSIVE FROM_ANSWER SIDE_BY_SIDE  the deadline counts from the answer, as above
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

/* the database: the tables supervisors and running */
bool up = true;
byte up_for = LEASE;            /* ticks since it became available, at most LEASE */
bool row_of[2];                 /* supervisor s is registered ... */
byte id[2];                     /* ... under this id; a worker keeps the registration under which it was forked */
byte left[2];                   /* ticks left of its lease */
byte job = READY;               /* or ENDED, or the token of its claim */
byte holder, holder_id;         /* of the claim: the host, and the registration */
bool committed;                 /* other sessions see the claim */
byte tokens;

/* the hosts */
bool alive[2] = true;
byte known[2];                  /* the registration that the supervisor knows; 0: none */
byte deadline[2];               /* in the control block, for the workers */
bool asked[2];                  /* a renewal or a registration was sent and not answered */
byte age[2];                    /* ticks since it was sent, at most LEASE */
bool running[2];                /* the worker runs the job's handler */
byte ticks, deaths, outages;
byte settled;                   /* ghost */

#define OURS(s, i) (row_of[s] && id[s] == (i))
#define OVER (job == ENDED)

#ifdef EXCLUSIVE
#define MARGIN 1                /* in these last ticks before the deadline, attempts end and none starts */
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

inline take_over(o) {           /* one transaction: the supervisor, its workers, and the rows that it sees */
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
     :: atomic { !up || job != READY || !OURS(s, seat) || !left[s] -> token = 0 }                       /* it finds no job */
     fi;
     if
     :: atomic { !token || !alive[s] }
     :: atomic { token && alive[s] ->                         /* the handler runs */
#ifdef EXCLUSIVE
          if
#ifdef OLD_CHILD
          :: deadline[s] <= MARGIN -> skip
#else
          :: deadline[s] <= MARGIN || known[s] != seat -> skip         /* the worker releases the job instead */
#endif
          :: else -> require(SIDE_BY_SIDE, !running[1 - s]); running[s] = true
          fi
#else
          running[s] = true
#endif
        };
        if
        :: atomic { running[s] -> running[s] = false };       /* it returns, and is settled once the database is available */
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
        :: atomic { running[s] && deadline[s] <= MARGIN -> running[s] = false };                             /* its timer fires: the job is released */
           goto back
        :: atomic { !running[s] && alive[s] };                /* the job did not start */
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
