/* Rate limits of each partition. Claims skip lanes without a token and note when the next token of a lane with ready jobs arrives. They
 * report the earliest of these times to the supervisor, which sets a timer. A lane holds the jobs of one partition.
 * sql/schema/17_lane_limits.sql (take_lane_token, note_opening, next_opening), 18_lane_picks.sql (pick_from_lane), 20_claim_gated.sql (the
 * notifications), workers/claim/wakes.py and supervisor/events/poll.py implement this.
 *
 * A lane has one token. A used token returns after two ticks. A producer adds a job to a lane that may have no token. A claim searches the
 * lanes in any order. It skips a lane whose lock is held (lane.pml shows when the claim must be repeated). A claim that took a job wakes another
 * worker if a noted lane has a token.
 *
 *   OVER    two jobs of a lane have started within two ticks
 *   ASLEEP  a job is ready, and all workers are idle without a timer and without a pending wake-up
 *
 * holds:
 * breaks: NO_LOCK          OVER    two claims take the same token of a lane
 * breaks: EARLY_LOOK       OVER    a claim reads the token before it has the lock
 * breaks: NO_NOTE          ASLEEP  a claim does not note a lane that it finds without a token
 * breaks: NO_LAST JOBS=2   ASLEEP  a claim that takes the token of a lane with more jobs does not note the lane
 * breaks: NO_TELL JOBS=2   ASLEEP  a claim that leaves a lane whose token has arrived wakes no other worker
 * breaks: LATE_LOOK        ASLEEP  a token that arrives during a claim that found none sets no timer
 *
 * The model leaves out polling, and the limit of 500 lanes in a claim's search.
 */
#ifndef NC
#define NC 2              /* workers of one supervisor */
#endif
#ifndef JOBS
#define JOBS 1            /* of each lane; a producer adds one more to lane 1 */
#endif
#define NEVER 255
#define STEP 2

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define OVER 1
#define ASLEEP 2

byte waiting[2] = JOBS;
byte adds = 1;
byte ticks = 0;
byte opens[2] = 0;        /* the bucket: the lane has a token from this tick on */
bool noted[2];            /* the lane is noted as waiting for its token */
bool locked[2];
byte timer = NEVER;
bool idle[NC];
byte sleeping = 0;
bool nudged[NC];
byte epoch = 0;           /* counts notifications: a worker that missed one claims again */

#define left (waiting[0] + waiting[1] + adds)

inline wake_one() {       /* called in an atomic */
    byte c_;
    c_ = 0;
    do
    :: c_ < NC && idle[c_] && !nudged[c_] -> nudged[c_] = true; break
    :: c_ < NC && !(idle[c_] && !nudged[c_]) -> c_++
    :: c_ == NC -> break
    od;
    c_ = 0
}

inline report() {         /* called in an atomic: the earliest token of a noted lane that arrives after the claim began */
#ifdef LATE_LOOK
        began = ticks;
#endif
        timer = ((noted[0] && opens[0] > began && opens[0] < timer) -> opens[0] : timer);
        timer = ((noted[1] && opens[1] > began && opens[1] < timer) -> opens[1] : timer)
}

inline try(lane) {
    if
    :: atomic {
           !took && waiting[lane] > 0 && !(noted[lane] && opens[lane] > ticks) ->
#ifdef EARLY_LOOK
           open = (opens[lane] <= ticks)
       };
       atomic {
#endif
#ifndef NO_LOCK
           got = !locked[lane]; locked[lane] = true
#else
           got = true
#endif
       };
        if
        :: !got
        :: got ->
#ifndef EARLY_LOOK
            open = (opens[lane] <= ticks);
#endif
            if
            :: open && waiting[lane] > 0 ->
                atomic {                                  /* the commit */
                    require(OVER, opens[lane] <= ticks);
                    waiting[lane]--;
                    took = true;
                    opens[lane] = ticks + STEP;
#ifdef NO_LAST
                    noted[lane] = false;
#else
                    noted[lane] = (waiting[lane] > 0);
#endif
                    locked[lane] = false
                }
            :: !open || waiting[lane] == 0 ->
                atomic {
#ifndef NO_NOTE
                    noted[lane] = (!open && waiting[lane] > 0);
#endif
                    locked[lane] = false
                }
            fi
        fi
    :: took || waiting[lane] == 0 || (noted[lane] && opens[lane] > ticks)
    fi
}

proctype Worker(byte me) {
    bool took; bool got; bool open; byte seen; byte began;
again:
    do
    :: true ->
        atomic { took = false; got = false; open = false; seen = epoch; began = ticks };
        if
        :: try(0); try(1)
        :: try(1); try(0)
        fi;
        if
        :: took ->
            atomic {
                report();
#ifndef NO_TELL
                if
                :: (noted[0] && opens[0] <= ticks && waiting[0] > 0) || (noted[1] && opens[1] <= ticks && waiting[1] > 0) -> epoch++; wake_one()
                :: else
                fi
#endif
            };
            if
            :: true                                       /* a short job; the next claim follows */
            :: true -> (sleeping == 0 || left == 0)       /* a job that runs as long as another worker is idle */
            fi
        :: !took ->
            atomic {
                if
                :: left == 0 -> goto out
                :: left > 0 && epoch != seen -> goto again
                :: left > 0 && epoch == seen -> idle[me] = true; sleeping++
                fi
            };
            atomic { report() };
            atomic { nudged[me] || left == 0 -> nudged[me] = false; idle[me] = false; sleeping-- };
            if :: left == 0 -> goto out :: else fi
        fi
    od;
out: skip
}

active proctype Producer() {
    atomic { waiting[1]++; adds = 0; epoch++; wake_one() }
}

active proctype Clock() {
    do
    :: atomic { (opens[0] > ticks && waiting[0] > 0) || (opens[1] > ticks && waiting[1] > 0) -> ticks++ }
    :: left == 0 -> break
    od
}

active proctype Supervisor() {
    do
    :: atomic { timer != NEVER && ticks >= timer -> timer = NEVER; wake_one() }
    :: left == 0 -> break
    od
}

active proctype Monitor() {
    timeout;                                              /* no other process can take a step */
    require(ASLEEP, left == 0)
}

init {
    byte i = 0;
    atomic {
        do
        :: i < NC -> run Worker(i); i++
        :: else -> break
        od
    }
}
