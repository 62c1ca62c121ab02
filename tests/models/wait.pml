/* Who waits for the end of a job is told of it: a waiter that listens, says so and looks, and those who end jobs, who look whether
 * somebody waits. sql/schema/05_wake.sql, announce_wait.sql, wait_for_settlements.sql and handlers/_enqueue/client.py say the same in code.
 *
 * A waiter is untold when it sleeps, its job is over, and nothing is on its way to it: the check in Monitor, which runs when nothing else
 * can. The backstop, by which it looks all the same, is left out on purpose.
 *
 *   UNTOLD  a waiter sleeps although its job is over
 *
 * holds:
 * breaks: NO_MEET       UNTOLD  the waiter does not wait for a settlement that is under way
 * breaks: KEYS_LAST     UNTOLD  it looks before it has said that it waits
 * breaks: LISTEN_LAST   UNTOLD  it looks before it listens
 * breaks: LOOK_FIRST    UNTOLD  a settlement looks for waiters before it has locked the row of the claim
 * breaks: QUIET_CANCEL  UNTOLD  who cancels a waiting job looks for waiters too, and does not always tell
 *
 * One job, which is claimed, given back, settled or cancelled while it waits; waiters that come at any moment. What a statement does to a
 * row is seen by others at its commit, and its lock is let go of after that.
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

byte state = READY;       /* as it is committed */
bool held = false;        /* somebody has locked its row: the claim's, or the waiting job's */
byte listening = 0;       /* bit w: waiter w has a LISTEN that is committed */
byte keys = 0;            /* bit w: waiter w holds its advisory keys */
byte notes = 0;           /* bit w: a notification is on its way to it, or was read */
byte asleep = 0;

/* The commit: others see it, who listens is told, and the lock goes last. */
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
        held = true;                                   /* nobody else takes a running row for long */
#ifndef LOOK_FIRST
        told = keys != 0;
#endif
        turn++;
        if
        :: commit(READY, false)                        /* snoozed, or tried again */
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
    :: true -> skip                                    /* nobody cancels */
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
    :: state == RUNNING -> !held                       /* FOR KEY SHARE: until whoever has locked it is through */
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

/* Nothing can move any more: whoever sleeps then sleeps because its job is not over. */
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
