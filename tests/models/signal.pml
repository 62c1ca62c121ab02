/* Signals and the jobs that wait for them: two senders, a job that takes two signals of one topic, a user who runs the job early, and
 * maintenance processes that match signals and waits. sql/schema/37_signals.sql and workers/run/steps.py implement this.
 *
 * The worker searches for a signal that the job has not taken. If there is none, one commit writes the wait and suspends the job. A
 * maintenance process locks a new signal, then searches for waits. It locks a new wait, then searches for signals. It marks the rows that it
 * has checked. A signal stays new while another process locks a wait of its topic, because that process may have searched before the signal.
 * Notifications are not in the model: a process may search at any time, so all notifications may be lost.
 *
 * Proved within these bounds:
 *   LOST   a signal is committed, and the job does not get it
 *   TWICE  the job gets a signal twice
 *
 * holds:
 * wide:   NM=3
 * breaks: EARLY_LOOK    LOST   waits are read before the signal is locked
 * breaks: SKIPS_LOCKED  LOST   a signal counts as matched although a wait of its topic is locked
 * breaks: NO_NEW_WAITS  LOST   only new signals are processed, not new waits
 * breaks: WAIT_FIRST    LOST   the wait is committed before the job is suspended
 * breaks: NO_RECORD     TWICE  the job does not store which signals it has taken
 *
 * Not modeled: timeouts, which run the job as the user does, and tenants.
 */
#ifndef NM
#define NM 2              /* maintenance processes */
#endif

#ifdef ONLY
#define require(P, C) if :: (P == ONLY) -> assert(C) :: else fi
#else
#define require(P, C) assert(C)
#endif
#define LOST 1
#define TWICE 2

#define READY 0
#define RUNNING 1
#define SUSPENDED 2
#define OVER 3

byte place = READY;
bool sent[2];             /* committed */
bool matched[2];
bool held[2];             /* the row of the signal is locked */
bool stored[2];           /* a step of the job has recorded it */
byte got[2];
byte steps = 0;
bool wait = false;        /* the row in waits */
bool looked = false;
bool locked = false;      /* the row in waits is locked */
byte early = 1;
byte lost_ones = 0;

proctype Sender(byte s) {
    if
    :: atomic { sent[s] = true }
    :: atomic { lost_ones++ }                                         /* rolled back */
    fi
}

active proctype Worker() {
    byte s;
    do
    :: atomic { place == READY -> place = RUNNING };
look:  s = 2;
       atomic {
           if
           :: sent[0] && !stored[0] -> s = 0
           :: !(sent[0] && !stored[0]) && sent[1] && !stored[1] -> s = 1
           :: else
           fi
       };
       if
       :: s < 2 ->
            atomic {
                !locked;                                              /* DELETE FROM waits */
                wait = false;
                got[s]++;
                require(TWICE, got[s] == 1);
#ifndef NO_RECORD
                stored[s] = true;
#endif
                steps++
            };
            if
            :: steps == 2 -> atomic { place = OVER }; break
            :: else -> goto look
            fi
       :: else ->
#ifdef WAIT_FIRST
            atomic { !locked; wait = true; looked = false };
            atomic { place = SUSPENDED }
#else
            atomic { !locked; wait = true; looked = false; place = SUSPENDED }
#endif
       fi
    :: timeout -> break
    od
}

active proctype User() {
    do
    :: atomic { early > 0 && place == SUSPENDED -> early--; place = READY }
    :: timeout -> break
    od
}

proctype Maintenance() {
    byte s; bool mine; bool busy; bool found;
    do
    :: mine = false; busy = false; found = false;
       if
#ifdef EARLY_LOOK
       :: atomic { !wait -> s = 0 };
            atomic { sent[0] && !matched[0] && !held[0] -> matched[0] = true }
#endif
       :: atomic { sent[0] && !matched[0] && !held[0] -> held[0] = true; s = 0 };
            goto signal
       :: atomic { sent[1] && !matched[1] && !held[1] -> held[1] = true; s = 1 };
signal:     atomic { if :: wait && !locked -> locked = true; mine = true :: else fi };
#ifndef SKIPS_LOCKED
            atomic { busy = wait && !mine };
#endif
            atomic {
                if :: !busy -> matched[s] = true :: else fi;
                if :: mine -> looked = false; locked = false :: else fi;
                held[s] = false; mine = false; busy = false; s = 0
            }
#ifndef NO_NEW_WAITS
       :: atomic { wait && !looked && !locked -> locked = true };
            atomic { found = (sent[0] && !stored[0]) || (sent[1] && !stored[1]) };
            atomic {
                if
                :: found && place == SUSPENDED -> place = READY; wait = false
                :: else -> looked = true
                fi;
                locked = false; found = false
            }
#endif
       :: timeout -> break
       fi
    :: timeout -> break
    od
}

active proctype Monitor() {
    timeout;
    require(LOST, steps == 2 - lost_ones)
}

init {
    byte i = 0;
    atomic {
        run Sender(0); run Sender(1);
        do
        :: i < NM -> run Maintenance(); i++
        :: else -> break
        od
    }
}
