"""Decides what a producer sends when: by its rate, its unconfirmed messages and its share.

Nothing here waits or reads a clock. The caller asks for the next burst and is told how long to wait
when there is none.
"""

from __future__ import annotations

from collections import deque

from warren.mgmt.perf.errors import ProtocolFault
from warren.mgmt.perf.measure import NS_PER_S, Tally
from warren.mgmt.perf.publication import Publications

BEHIND_NS_MAX = 100_000_000
"""How much delay a producer makes up for. More would turn an even rate into a flood after each
pause of the broker."""


class Pacer:
    """An even rate: message k is due k intervals after the first."""

    __slots__ = ("_interval_ns", "_next_ns")

    def __init__(self, rate: float, start_ns: int) -> None:
        """`rate` in messages per second."""
        self._interval_ns = NS_PER_S / rate
        self._next_ns = float(start_ns)

    def due(self, now_ns: int) -> int:
        """How many messages are due and not yet taken; those too far behind are given up."""
        behind_ns = now_ns - self._next_ns
        if behind_ns < 0:
            return 0
        behind_ns_max = max(BEHIND_NS_MAX, self._interval_ns)
        if behind_ns > behind_ns_max:
            self._next_ns = now_ns - behind_ns_max
            behind_ns = behind_ns_max
        return int(behind_ns / self._interval_ns) + 1

    def take(self, count: int) -> None:
        self._next_ns += count * self._interval_ns

    def wait_ns(self, now_ns: int) -> int:
        """Nanoseconds until the next message is due."""
        return max(0, int(self._next_ns - now_ns))


class Unconfirmed:
    """Messages that the broker has not confirmed, in the order of their delivery tags.

    `_stamps[k]` is when tag `_first + k` was sent, or None if it was confirmed before an earlier
    one. The leftmost is never None.
    """

    __slots__ = ("_first", "_stamps", "count", "window")

    def __init__(self, window: int) -> None:
        assert window > 0, window
        self.window = window
        self.count = 0
        self._first = 1
        self._stamps: deque[int | None] = deque()

    @property
    def room(self) -> int:
        return self.window - self.count

    def sent(self, count: int, now_ns: int) -> None:
        assert count <= self.room, (count, self.room)
        self._stamps.extend([now_ns] * count)
        self.count += count

    def settle(self, tag: int, multiple: bool) -> list[int]:
        """Settle by a basic.ack or basic.nack; returns when the messages were sent.

        A tag that was settled before settles nothing; with `multiple`, tag 0 means all messages.
        """
        stamps = self._stamps
        place = tag - self._first
        if place >= len(stamps):
            raise ProtocolFault(
                f"the broker confirmed delivery tag {tag}, of {self._first + len(stamps) - 1} sent"
            )
        if multiple:
            settled = self._settle_up_to(len(stamps) if tag == 0 else place + 1)
        elif place < 0 or (stamp := stamps[place]) is None:
            return []
        else:
            settled = [stamp]
            stamps[place] = None
        while stamps and stamps[0] is None:
            stamps.popleft()
            self._first += 1
        self.count -= len(settled)
        return settled

    def _settle_up_to(self, count: int) -> list[int]:
        settled: list[int] = []
        for _ in range(count):
            stamp = self._stamps.popleft()
            self._first += 1
            if stamp is not None:
                settled.append(stamp)
        return settled


class Sender:
    """One connection of a producer. `blocked` is set while the broker asks not to publish."""

    def __init__(
        self,
        publications: Publications,
        tally: Tally,
        *,
        messages: int | None = None,
        pacer: Pacer | None = None,
        unconfirmed: Unconfirmed | None = None,
    ) -> None:
        self._publications = publications
        self._tally = tally
        self._messages = messages
        self._pacer = pacer
        self._unconfirmed = unconfirmed
        self.blocked = False

    @property
    def is_done(self) -> bool:
        """Whether all is sent and, with confirms, settled."""
        return self._messages == 0 and (self._unconfirmed is None or not self._unconfirmed.count)

    def stop(self) -> None:
        """Send no more; what was sent may still be confirmed."""
        self._messages = 0

    def next_burst(self, now_ns: int) -> bytes:
        """The octets to write now.

        They are empty if nothing may be sent before time passes, a confirm comes or the broker
        unblocks.
        """
        count = self._allowed(now_ns)
        if not count:
            return b""
        octets, body_bytes = self._publications.take(count, now_ns)
        if self._messages is not None:
            self._messages -= count
        if self._pacer is not None:
            self._pacer.take(count)
        if self._unconfirmed is not None:
            self._unconfirmed.sent(count, now_ns)
        tally = self._tally
        tally.sent += count
        tally.sent_bytes += body_bytes
        tally.published_until_ns = now_ns
        return octets

    def wait_ns(self, now_ns: int) -> int | None:
        """Time until the next burst is due; None if news from the broker have to come first."""
        if self._pacer is None or self._messages == 0 or self.blocked:
            return None
        if self._unconfirmed is not None and not self._unconfirmed.room:
            return None
        return self._pacer.wait_ns(now_ns)

    def confirmed(self, confirms: list[tuple[int, bool, bool]], now_ns: int) -> None:
        """The broker settled messages: (delivery tag, multiple, is a nack)."""
        if self._unconfirmed is None:
            raise ProtocolFault("the broker confirmed messages on a channel without confirms")
        tally = self._tally
        for tag, multiple, is_nack in confirms:
            settled = self._unconfirmed.settle(tag, multiple)
            if is_nack:
                tally.nacked += len(settled)
            else:
                tally.confirmed += len(settled)
                tally.confirm_latency.record_since(settled, now_ns)
        tally.published_until_ns = now_ns

    def _allowed(self, now_ns: int) -> int:
        if self.blocked:
            return 0
        count = self._publications.burst_max
        if self._messages is not None:
            count = min(count, self._messages)
        if self._unconfirmed is not None:
            count = min(count, self._unconfirmed.room)
        if self._pacer is not None:
            count = min(count, self._pacer.due(now_ns))
        return count
