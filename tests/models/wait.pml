/* Sessions that wait for the end of a job are notified. A waiter (`Waiter`) listens, announces its wait and checks the job. A session that
 * ends a job checks whether a waiter exists. sql/schema/05_wake.sql, announce_wait.sql, wait_for_settlements.sql and
 * handlers/_enqueue/client.py implement this.
 *
 * A waiter misses the end if it sleeps, its job is finished, and no notification is pending. Monitor checks this when no other process can
 * take a step. The model leaves out the periodic check that a waiter makes without a notification.
 *
 *   UNTOLD  a waiter sleeps although its job is finished
 *
 * holds:
 * breaks: NO_MEET       UNTOLD  the waiter does not wait for a settlement that is in progress
 * breaks: KEYS_LAST     UNTOLD  it checks the job before it announces its wait
 * breaks: LISTEN_LAST   UNTOLD  it checks the job before it listens
 * breaks: LOOK_FIRST    UNTOLD  a settlement checks for waiters before it locks the row of the claim
 * breaks: QUIET_CANCEL  UNTOLD  a session that cancels a ready job also checks for waiters, instead of always notifying
 *
 * One job is claimed, released, settled or canceled during the wait. Waiters start at any time. Other sessions see the changes of a
 * statement at its commit, and its locks are released after that.
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
bool held = false;        /* a session has locked its row: the row of the claim or of the ready job */
byte listening = 0;       /* bit w: waiter w has committed a LISTEN */
byte keys = 0;            /* bit w: waiter w holds its advisory keys */
byte notes = 0;           /* bit w: a notification to waiter w is pending */
byte asleep = 0;

/* The commit: others see the state, listening sessions are notified, and the lock is released last. */
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
        held = true;                                   /* no other session locks a running row for long */
#ifndef LOOK_FIRST
        told = keys != 0;
#endif
        turn++;
        if
        :: commit(READY, false)                        /* snoozed or retried */
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
    :: true -> skip                                    /* no session cancels the job */
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
    :: state == RUNNING -> !held                       /* FOR KEY SHARE: waits until the row is unlocked */
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

/* No other process can take a step: a waiter that sleeps now must have an unfinished job. */
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
