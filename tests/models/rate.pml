/* Rate limits. Claims count the tokens under a lock and take one. The supervisor sets a timer for the next token, which wakes one idle worker.
 * sql/schema/14_rates.sql, 20_claim_gated.sql, workers/claim/wakes.py (rest, report_opening) and supervisor/events/poll.py implement this.
 *
 * Each tick adds a token, unless the bucket is full. A claim that finds no token, or takes the last one while jobs are ready, reports the
 * next tick. A claim that leaves tokens and ready jobs wakes another worker at once. The supervisor keeps the earliest report. At that tick
 * it wakes one worker whose idle flag is set. If no worker is idle, the timer has no effect.
 *
 *   OVER    more jobs have started than the burst and the ticks allow
 *   ASLEEP  a job is ready, and all workers are idle without a timer and without a pending wake-up
 *
 * holds:
 * holds:  BURST=2 NC=3
 * holds:  DIES
 * wide:   BURST=2 NC=3 JOBS=5 DIES
 * breaks: NO_LOCK     OVER    two claims count the same token
 * breaks: EARLY_COUNT OVER    the statement that waits for the lock also counts
 * breaks: NO_LAST NC=3 ASLEEP  a claim that takes the last token reports no tick, and the other workers are idle
 * breaks: NO_EMPTY    ASLEEP  a claim that finds no token reports no tick
 * breaks: NO_PASS_ON BURST=2 NC=3 ASLEEP  a claim that leaves a token wakes no other worker
 * breaks: EARLY_REPORT ASLEEP a worker reports before it sets its idle flag: the timer finds no idle worker
 * breaks: DIES NO_DEATH_WAKE ASLEEP  a worker dies before its report, and the supervisor wakes no other worker
 *
 * The model leaves out polling, so that it shows each missing wake-up.
 */
#ifndef NC
#define NC 2              /* workers of one supervisor */
#endif
#ifndef BURST
#define BURST 1
#endif
#ifndef JOBS
#define JOBS 4
#endif
#define NEVER 255

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define OVER 1
#define ASLEEP 2

byte waiting = JOBS;
byte tokens = BURST;
byte ticks = 0;
byte started = 0;
byte timer = NEVER;       /* the tick at which the supervisor wakes a worker */
bool locked = false;
bool idle[NC];
byte sleeping = 0;        /* workers that are idle */
bool nudged[NC];
byte gone = 0;

inline report(due) {
    atomic { if :: due < timer -> timer = due :: else fi }
}

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

proctype Worker(byte me) {
    byte seen; byte at; bool took; bool last;
    do
    :: true ->
#ifdef EARLY_COUNT
        atomic { seen = tokens; at = ticks };
#endif
#ifndef NO_LOCK
        atomic { !locked -> locked = true };
#endif
#ifndef EARLY_COUNT
        atomic { seen = tokens; at = ticks };
#endif
        took = false; last = false;
        if
        :: seen > 0 && waiting > 0 ->
            atomic {                                      /* the commit */
                if
                :: waiting > 0 ->
                    waiting--; started++; took = true;
                    if :: tokens > 0 -> tokens-- :: else fi;
                    last = (tokens == 0 && waiting > 0);
                    at = ticks
                :: else
                fi;
                require(OVER, started <= BURST + ticks)
            }
        :: else
        fi;
#ifndef NO_LOCK
        locked = false;
#endif
        if
        :: took ->
#ifdef DIES
            if
            :: atomic { gone < NC - 1 -> gone++;          /* killed before its report; the job is finished */
#ifndef NO_DEATH_WAKE
                    wake_one()
#endif
                };
                goto out
            :: true
            fi;
#endif
#ifndef NO_LAST
            if :: last -> report(at + 1) :: else fi;
#endif
#ifndef NO_PASS_ON
            atomic { if :: !last && waiting > 0 -> wake_one() :: else fi };
#endif
            if
            :: true                                       /* a short job; the next claim follows */
            :: true -> (sleeping == 0 || waiting == 0)    /* a job that runs as long as another worker is idle */
            fi
        :: else ->
            if :: waiting == 0 -> goto out :: else fi;
#ifdef EARLY_REPORT
            report(at + 1);
#endif
            atomic { idle[me] = true; sleeping++ };
#ifndef EARLY_REPORT
#ifndef NO_EMPTY
            report(at + 1);
#endif
#endif
            atomic { nudged[me] || waiting == 0 -> nudged[me] = false; idle[me] = false; sleeping-- }
            if :: waiting == 0 -> goto out :: else fi
        fi
    od;
out: skip
}

active proctype Clock() {
    do
    :: atomic { tokens < BURST && waiting > 0 -> ticks++; tokens++ }
    :: waiting == 0 -> break
    od
}

active proctype Supervisor() {
    do
    :: atomic { timer != NEVER && ticks >= timer -> timer = NEVER; wake_one() }
    :: waiting == 0 -> break
    od
}

active proctype Monitor() {
    timeout;                                              /* no other process can take a step */
    require(ASLEEP, waiting == 0)
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
