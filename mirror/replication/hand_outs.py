"""Which messages of a level may have been handed to clients, as far as mirrors know.

Theory. A message that comes again after a failover is to be redelivered if a client may have had
it, and only then. A mirror does not know what its leader handed out last, so the leader says in
advance: messages *below* a position may be handed out (HAND_OUT, among its instructions). It hands
out nothing else before every mirror has reported to have heard so. Whoever leads next counts what
is below the last such position it has heard of as delivered, and nothing else.

The leader announces more than it hands out at the moment, and more again when half of that is used
up, so that consumers seldom wait. How much more begins small and doubles each time they had to
wait: what is announced and not handed out is redelivered though nobody had it. A message that
somebody gets as soon as it is published waits for nothing: its announcement stands before it, so a
mirror that has not heard of the one has not got the other.

When a mirror is out of reach, the leader announces the rest once more, and hands out nothing until
that is reported too: by then the definition names that mirror no more, or it has come back.
"""

from __future__ import annotations

from typing import Protocol

AHEAD_MIN = 64
AHEAD_MAX = 2048
"""So many positions more than are needed are announced: a few prefetches, up to what 50,000
messages a second need while mirrors take 40 ms to answer."""


class HandOutJournal(Protocol):
    """Who tells the mirrors, and the queue."""

    def hand_out(self, level: int, below: int) -> None:
        """Tell mirrors; `HandOuts.noted_by_all` when all have heard of it."""
        ...

    def withhold(self) -> None:
        """There are messages that may not be handed out yet."""
        ...


class HandOuts:
    """Of one level at its leader. Everything that was handed out is below `announced`."""

    __slots__ = ("_ahead", "_journal", "_level", "_waits", "announced", "noted", "renew_at")

    def __init__(self, level: int, below: int, journal: HandOutJournal) -> None:
        """What is below that position counts as delivered anyway."""
        self._level = level
        self._journal = journal
        self._ahead = AHEAD_MIN
        # Whether there was something that could not be handed out yet.
        self._waits = False
        self.announced = below
        # What every mirror knows.
        self.noted = below
        # When a message from this position on is handed out, more is to be announced.
        self.renew_at = below

    def announce(self, start: int) -> None:
        """Have mirrors know in time that messages from this position on may be handed out."""
        self.announced = start + self._ahead
        self.renew_at = self.announced - self._ahead // 2
        self._journal.hand_out(self._level, self.announced)

    def make_room(self, start: int, limit: int) -> int:
        """How many positions from this one on may be handed out, up to a limit.

        Without any the journal is told to withhold the messages, until mirrors know of more.
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

        Returns whether that was waited for.
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
        """Exactly what is below this position counts as delivered. The rest waits for mirrors."""
        self.announced = self.renew_at = below
        self.noted = min(self.noted, below)
        self._journal.hand_out(self._level, below)
