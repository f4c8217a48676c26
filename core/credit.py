"""Flow control by credit between a sender and a receiver, in messages and in bytes.

Theory (storage_internals.md section d.6). A sender starts with `initial` credit and spends it with
each message. It may go below zero, since what has begun is finished, but from zero on it counts as
blocked. The receiver notes what it has processed and hands it back as a grant once there is
`more_after` of it, in messages or in bytes. So at every moment

    credit of the sender + what is on the way + what is processed but not granted == initial

and because `more_after` is not larger than `initial`, a sender whose receiver has processed
everything has credit left: nobody is blocked for ever by a receiver that works.

A party that is blocked itself withholds the grants it owes. That is how pressure travels from a
disk back to the sockets, through any number of parties. They are paid when it is unblocked.

When one end goes away, the other closes its end, and nothing of the pair is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Credit(NamedTuple):
    """So many messages, and so many bytes of them."""

    messages: int
    octets: int


class CreditSpec(NamedTuple):
    """What a sender starts with, and how much of it is granted anew at a time."""

    initial: Credit
    more_after: Credit


# RabbitMQ's {400,200} and {4000,800} in messages. The bytes are what so many messages of 16 KiB
# hold, so that smaller ones are limited by their number and larger ones by their size.
DEFAULT_SPEC = CreditSpec(Credit(400, 400 << 14), Credit(200, 200 << 14))
STORE_SPEC = CreditSpec(Credit(4000, 4000 << 14), Credit(800, 800 << 14))


class CreditMismatch(Exception):
    """More was granted than had been spent: the two ends do not count the same messages."""


class Party:
    """Somebody who receives from some and sends to others; `now` is the clock.

    `on_change` is told when the party becomes blocked and when it no longer is.
    """

    def __init__(self, now: Callable[[], float], on_change: Callable[[bool], None]) -> None:
        self._now = now
        self._on_change = on_change
        self._blocked_by: set[Sender] = set()
        self._receivers: dict[Receiver, None] = {}
        self._unblocked_at: float | None = None

    @property
    def blocked(self) -> bool:
        return bool(self._blocked_by)

    def in_flow(self, within_s: float) -> bool:
        """Whether it is blocked, or was within the last seconds."""
        if self._blocked_by:
            return True
        return self._unblocked_at is not None and self._now() - self._unblocked_at <= within_s

    def _block(self, sender: Sender) -> None:
        was_blocked = self.blocked
        self._blocked_by.add(sender)
        if not was_blocked:
            self._on_change(True)

    def _unblock(self, sender: Sender) -> None:
        if sender not in self._blocked_by:
            return
        self._blocked_by.remove(sender)
        if self.blocked:
            return
        self._unblocked_at = self._now()
        self._on_change(False)
        for receiver in list(self._receivers):
            # A grant may bring the next messages at once, and with them the next block.
            if self.blocked:
                return
            receiver._grant_if_due()


class Sender:
    """The sending end of a pair: what `party` may still send to one receiver."""

    def __init__(self, party: Party, spec: CreditSpec = DEFAULT_SPEC) -> None:
        self._messages, self._octets = spec.initial
        self._initial = spec.initial
        self._party = party

    @property
    def credit(self) -> Credit:
        return Credit(self._messages, self._octets)

    def spend(self, octets: int, messages: int = 1) -> None:
        """Messages are sent; blocks the party when that uses up the credit."""
        self._messages -= messages
        self._octets -= octets
        if self._messages <= 0 or self._octets <= 0:
            self._party._block(self)

    def grant(self, grant: Credit) -> None:
        """The receiver has granted this much. Raises `CreditMismatch`."""
        messages, octets = self._messages + grant.messages, self._octets + grant.octets
        if messages > self._initial.messages or octets > self._initial.octets:
            raise CreditMismatch(f"{grant} on top of {self.credit} is more than {self._initial}")
        self._messages, self._octets = messages, octets
        if messages > 0 and octets > 0:
            self._party._unblock(self)

    def close(self) -> None:
        """The receiver is gone; it blocks nobody any more."""
        self._party._unblock(self)


class Receiver:
    """The receiving end of a pair: what `party` owes to one sender.

    `send_grant` brings a grant to the `grant` of the sender's end.
    """

    def __init__(
        self,
        party: Party,
        send_grant: Callable[[Credit], None],
        spec: CreditSpec = DEFAULT_SPEC,
    ) -> None:
        initial, more_after = spec
        assert 0 < more_after.messages <= initial.messages, spec
        assert 0 < more_after.octets <= initial.octets, spec
        self._messages = self._octets = 0
        self._more_after = more_after
        self._party = party
        self._send_grant = send_grant
        party._receivers[self] = None

    @property
    def owed(self) -> Credit:
        return Credit(self._messages, self._octets)

    def processed(self, octets: int, messages: int = 1) -> None:
        """Messages are dealt with, as far as the sender is concerned."""
        self._messages += messages
        self._octets += octets
        if not self._party.blocked:
            self._grant_if_due()

    def close(self) -> None:
        """The sender is gone; nothing is owed to it any more."""
        self._party._receivers.pop(self, None)
        self._messages = self._octets = 0

    def _grant_if_due(self) -> None:
        more_after = self._more_after
        if self._messages >= more_after.messages or self._octets >= more_after.octets:
            owed = self.owed
            self._messages = self._octets = 0
            self._send_grant(owed)
