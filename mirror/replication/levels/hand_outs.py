"""Which messages of a level may have been handed to clients, as far as mirrors know.

Theory. A message that comes again after a failover is to be redelivered if a client may have had
it, and only then. A mirror does not know what its leader handed out last, so the leader announces
in advance: messages *below* a position may be handed out (HAND_OUT, among its instructions). It
hands out only such messages, and only when every mirror has reported that it knows. The next leader
counts as delivered what is below the last announced position it has heard of, and nothing else.

The leader announces more than it hands out at the moment, and again when half of that is used up,
so that consumers seldom wait. The surplus begins small and doubles each time they had to wait: what
is announced and not handed out comes as redelivered after a failover, though no client has had it.
A message that goes to a consumer as soon as it is published waits for nothing: its announcement
comes before it, so a mirror that has the message has heard the announcement.

When a mirror is out of reach, the leader announces the rest once more, and hands out nothing until
that is reported too: by then the definition does not name that mirror, or it has come back.
"""

from __future__ import annotations

from typing import Protocol

AHEAD_MIN = 64
AHEAD_MAX = 2048
"""How many positions more than are needed are announced: from a few prefetches up to what 50,000
messages a second need while mirrors take 40 ms to answer."""


class HandOutJournal(Protocol):
    """The calls of `HandOuts` to the leader, which tells its mirrors and its queue."""

    def hand_out(self, level: int, below: int) -> None:
        """Announce it to the mirrors; call `HandOuts.noted_by_all` when all know of it."""
        ...

    def withhold(self) -> None:
        """Have the queue wait: it has messages that may not be handed out yet."""
        ...


class HandOuts:
    """The hand-outs of one level at its leader. All that was handed out is below `announced`."""

    __slots__ = ("_ahead", "_journal", "_level", "_waits", "announced", "noted", "renew_at")

    def __init__(self, level: int, below: int, journal: HandOutJournal) -> None:
        """Messages below the position `below` count as delivered anyway."""
        self._level = level
        self._journal = journal
        self._ahead = AHEAD_MIN
        # Whether messages were withheld until mirrors know of more.
        self._waits = False
        self.announced = below
        # The announced position that every mirror knows of.
        self.noted = below
        # When a message at this position or later is handed out, more must be announced.
        self.renew_at = below

    def announce(self, start: int) -> None:
        """Have mirrors know in time that messages from this position on may be handed out."""
        self.announced = start + self._ahead
        self.renew_at = self.announced - self._ahead // 2
        self._journal.hand_out(self._level, self.announced)

    def make_room(self, start: int, limit: int) -> int:
        """How many positions from this one on may be handed out, up to a limit.

        If there are none, the journal is told to withhold messages until mirrors know of more.
        """
        self._ahead = max(self._ahead, min(limit, AHEAD_MAX))
        if self.announced < start + min(limit, self._ahead):
            self.announce(start)
        if self.noted <= start:
            self._waits = True
            self._journal.withhold()
            return 0
        return min(limit, self.noted - start)

    def noted_by_all(self, below: int) -> bool:
        """Every mirror knows that messages below this position may be handed out.

        Returns whether messages were withheld until then.
        """
        self.noted = max(self.noted, below)
        waited, self._waits = self._waits, False
        if waited:
            self._ahead = min(2 * self._ahead, AHEAD_MAX)
        return waited

    def doubt(self, start: int) -> None:
        """Hand out nothing from this position on before mirrors have reported again: one that is
        out of reach may lead by now, and its clients may have got what was announced here."""
        if self.noted > start:
            self.noted = start
            self._journal.hand_out(self._level, self.announced)

    def begin_anew(self, below: int) -> None:
        """Count exactly the messages below this position as delivered; others wait for mirrors."""
        self.announced = self.renew_at = below
        self.noted = min(self.noted, below)
        self._journal.hand_out(self._level, below)
