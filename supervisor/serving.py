"""Runs a supervisor once it is built: serves until it must stop, then exits.

It does not depend on where the jobs come from.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jobherd.supervisor.crash import orphans
from jobherd.supervisor.version import VERSION
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    import selectors

    from jobherd.supervisor.crash.death_messages import DeathMessages
    from jobherd.supervisor.database.identity import Identity
    from jobherd.supervisor.events.reload import FileWatch
    from jobherd.supervisor.events.signals import Signals
    from jobherd.supervisor.loop import Loop
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.process.signals import SignalPipe
    from jobherd.supervisor.settings.live import LiveSettings

log = logging.getLogger("jobherd.supervisor")


class Serving:
    """A supervisor whose parts its subclass builds. One per process; `run` returns the exit code."""

    me: Identity
    settings: LiveSettings
    slot_table: SlotTable
    selector: selectors.BaseSelector
    signal_pipe: SignalPipe
    signals: Signals
    files: FileWatch
    deaths: DeathMessages
    loop: Loop

    def run(self) -> int:
        """Serve until the supervisor must stop; return the exit code."""
        orphans.become_subreaper()
        self.signal_pipe.raises = False  # earlier signals are in the pipe
        with self.signal_pipe.handled():
            self.signals.register(self.selector)
            log.info("supervisor %s starts", VERSION, extra={"pid": self.me.pid, "workers": self.slot_table.wanted})
            if self.settings.now.reload:
                self.files.start(self.settings)
            while (code := self.loop.exit_code) is None:
                self.loop.turn()
            reach("parent:leaving")
            self.files.close()
            self.leave()
            self.deaths.close()
            self.selector.close()
            log.info("supervisor exits", extra={"exit_code": code})
            return code

    def leave(self) -> None:
        """Close the connection to the queue."""
        raise NotImplementedError
