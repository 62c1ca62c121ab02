/* Sessions that wait for the end of a job are notified: a waiter listens, announces its wait and reads the job, and processes that end jobs
 * check for waiters. The code is in sql/schema/05_wake.sql, announce_wait.sql, wait_for_settlements.sql and handlers/_enqueue/client.py.
 *
 * A waiter is not notified if it sleeps, its job has finished, and no notification is on its way. Monitor checks this when no other process
 * can run. The poll, by which the waiter reads the job anyway, is not modelled on purpose.
 *
 *   UNTOLD  a waiter sleeps although its job has finished
 *
 * holds:
 * breaks: NO_MEET       UNTOLD  the waiter does not wait for a running settlement
 * breaks: KEYS_LAST     UNTOLD  the waiter reads the job before it announces its wait
 * breaks: LISTEN_LAST   UNTOLD  the waiter reads the job before it listens
 * breaks: LOOK_FIRST    UNTOLD  a settlement checks for waiters before it has locked the row of the claim
 * breaks: QUIET_CANCEL  UNTOLD  a cancellation of a waiting job also checks for waiters, and does not always notify
 *
 * One job, which is claimed, released, settled or cancelled while it waits, and waiters that start at any time. Others see the changes of a
 * statement at its commit, and its lock is released after that.
 */
#ifndef NW
#define NW 2              /* waiters */
#endif
#ifndef TURNS
#define TURNS 3           /* claims */
#endif

#define READY 0
#define RUNNING 1
#define OVER 2

byte state = READY;       /* the committed state */
bool held = false;        /* the row of the claim, or of the waiting job, is locked */
byte listening = 0;       /* bit w: waiter w has a LISTEN that is committed */
byte keys = 0;            /* bit w: waiter w holds its advisory keys */
byte notes = 0;           /* bit w: a notification is on its way to it, or was read */
byte asleep = 0;

/* The commit: others see it, listeners are notified, and the lock is released last. */
inline commit(outcome, told) {
    d_step { state = outcome; if :: told -> notes = notes | listening :: else fi };
    held = false
}

proctype Worker() {
    byte turn = 0; bool told;
    do
    :: turn < TURNS ->
        atomic { state == READY && !held -> held = true };
        commit(RUNNING, false);
#ifdef LOOK_FIRST
        told = keys != 0;
#endif
        held = true;                                   /* no other process locks a running row for long */
#ifndef LOOK_FIRST
        told = keys != 0;
#endif
        turn++;
        if
        :: commit(READY, false)                        /* snoozed, or retried */
        :: commit(OVER, told); break
        fi
    :: state == OVER -> break
    :: turn == TURNS -> break
    od
}

proctype Canceller() {
    bool told;
    if
    :: atomic { state == READY && !held -> held = true } ->
#ifdef QUIET_CANCEL
        told = keys != 0;
#else
        told = true;
#endif
        commit(OVER, told)
    :: true -> skip                                    /* no cancellation */
    fi
}

proctype Waiter(byte w) {
    byte seen;
#ifndef LISTEN_LAST
    listening = listening | (1 << w);
#endif
#ifndef KEYS_LAST
    keys = keys | (1 << w);
#endif
#ifndef NO_MEET
    if
    :: state == RUNNING -> !held                       /* FOR KEY SHARE: until the lock is released */
    :: else -> skip
    fi;
#endif
    seen = state;
#ifdef KEYS_LAST
    keys = keys | (1 << w);
#endif
#ifdef LISTEN_LAST
    listening = listening | (1 << w);
#endif
    do
    :: seen == OVER -> break
    :: else ->
        asleep = asleep | (1 << w);
end_sleep:
        atomic { notes & (1 << w) -> notes = notes & ~(1 << w); asleep = asleep & ~(1 << w) };
        seen = state
    od
}

/* No process can make a step: a waiter sleeps then only because its job has not finished. */
proctype Monitor() {
    atomic { timeout -> assert(!(state == OVER && asleep != 0)) }
}

init {
    atomic {
        byte w = 0;
        run Worker(); run Canceller();
        do :: w < NW -> run Waiter(w); w++ :: else -> break od;
        run Monitor()
    }
}
