"""One member's knowledge of the messages in the ring: publishes, acks, confirms, its own buffer.

Theory (reference section 1.6). A publish goes round the ring once: each member notes it, passes it
on and delivers it, until it is back at its owner. Then its ack goes round, and each member forgets
the publish. So every publish that a member holds is still on its way to some member. When a member
dies, comparing what its two neighbours hold finds the messages it had not passed on (`catch_up`).

A broadcast is delivered to its sender at once and buffered; it is numbered and noted when the
buffer is flushed. This file only keeps the accounts: `ring` and `member` decide what is sent when,
and to which neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from warren.mirror.carriers.ports import MemberId
from warren.mirror.gm.catch_up import missed
from warren.mirror.gm.errors import Inconsistent
from warren.mirror.gm.member_state import MemberState, cost
from warren.mirror.gm.messages import NONE, Known, MemberNews


class ActivityEffects(NamedTuple):
    """The results of activity: entries to pass on, then deliveries, and confirmed tokens."""

    entries: list[MemberNews]
    deliveries: list[MemberNews]
    confirmed: tuple[object, ...]


class Circulation:
    """The accounts of one member. `held_bytes` counts all pending publishes and the buffer."""

    def __init__(self, me: MemberId) -> None:
        self._me = me
        self.states: dict[MemberId, MemberState] = {me: MemberState()}
        self.buffer: list[bytes] = []
        self.buffer_bytes = 0
        self._confirms: deque[tuple[int, object]] = deque()

    @property
    def held_bytes(self) -> int:
        return self.buffer_bytes + sum(state.held_bytes for state in self.states.values())

    @property
    def last_broadcast(self) -> int:
        """The number of the last broadcast, flushed or not."""
        return self.states[self._me].last_pub + len(self.buffer)

    @property
    def is_drained(self) -> bool:
        """Whether every publish that this member knows of has gone round, and its ack too."""
        return not self.buffer and all(state.is_settled for state in self.states.values())

    # Broadcasting

    def add(self, payload: bytes) -> None:
        self.buffer.append(payload)
        self.buffer_bytes += cost(payload)

    def confirm_last(self, token: object) -> None:
        """Have the token confirmed when the last broadcast has gone round."""
        self._confirms.append((self.last_broadcast, token))

    def flush(self) -> MemberNews:
        """Number the buffered publishes, note them as pending, and return them for sending."""
        mine = self.states[self._me]
        entry = MemberNews(self._me, mine.last_pub + 1, tuple(self.buffer), NONE)
        mine.publish(entry.pubs)
        self.buffer = []
        self.buffer_bytes = 0
        return entry

    def settle_alone(self) -> tuple[object, ...]:
        """This member is alone now, so everything has gone round. Returns the confirmed tokens."""
        self.flush()
        for state in self.states.values():
            state.forget(state.last_pub)
            state.last_ack = state.last_pub
        return self._confirmed(self.last_broadcast)

    # Knowledge

    def known(self) -> tuple[Known, ...]:
        """All that is known, for the catchup of a right neighbour."""
        return tuple(
            Known(member, state.last_pub, tuple(state.pending))
            for member, state in self.states.items()
        )

    def load(self, known: Iterable[Known]) -> None:
        """Begin with the left neighbour's knowledge; the publishes in it are not delivered here."""
        for member, last_pub, pending in known:
            self.states[member] = MemberState(last_pub, pending)

    def keep(self, members: Iterable[MemberId]) -> None:
        """Keep the accounts of these members only; a new one begins without publishes."""
        self.states = {member: self.states.get(member) or MemberState() for member in members}

    def settled(self, members: Iterable[MemberId]) -> list[MemberId]:
        """Return those of these members whose publishes and acks have all gone round the ring."""
        return [member for member in members if self.states[member].is_settled]

    # Messages from the left neighbour

    def catch_up(self, known: Iterable[Known], owned: Collection[MemberId]) -> ActivityEffects:
        return self.receive(missed(self.states, known, owned), owned)

    def receive(
        self, entries: Iterable[MemberNews], owned: Collection[MemberId]
    ) -> ActivityEffects:
        """Account for activity. `owned` are this member and its aliases.

        Raises `Inconsistent` for numbers that do not follow from what is known.
        """
        progress = ActivityEffects([], [], ())
        confirmed: tuple[object, ...] = ()
        for entry in entries:
            state = self.states.get(entry.member)
            if state is None:
                self._check_erased(entry)
            elif entry.member in owned:
                confirmed += self._come_round(entry, state, progress.entries)
            else:
                self._pass(entry, state)
                progress.entries.append(entry)
                if entry.pubs:
                    progress.deliveries.append(entry)
        return progress._replace(confirmed=confirmed)

    def _check_erased(self, entry: MemberNews) -> None:
        """When a member is erased, its acks may still be going round, but not its publishes."""
        if entry.pubs:
            raise Inconsistent(f"{entry.member} is erased and publishes {_range(entry)}")

    def _pass(self, entry: MemberNews, state: MemberState) -> None:
        if entry.pubs:
            if entry.first != state.last_pub + 1:
                raise Inconsistent(f"{entry.member} publishes {_range(entry)} after {state}")
            state.publish(entry.pubs)
        if entry.acked != NONE:
            if not state.acked < entry.acked <= state.last_pub:
                raise Inconsistent(f"{entry.member} has acked up to {entry.acked}, I know {state}")
            state.forget(entry.acked)
            state.last_ack = entry.acked

    def _come_round(
        self, entry: MemberNews, state: MemberState, answer: list[MemberNews]
    ) -> tuple[object, ...]:
        """Publishes that have come back are acked; acks that have come back end here."""
        confirmed: tuple[object, ...] = ()
        if entry.pubs:
            last = entry.first + len(entry.pubs) - 1
            if entry.first != state.acked + 1 or last > state.last_pub:
                raise Inconsistent(f"{_range(entry)} of {entry.member} came back, it has {state}")
            state.forget(last)
            answer.append(MemberNews(entry.member, 0, (), last))
            if entry.member == self._me:
                confirmed = self._confirmed(last)
        if entry.acked != NONE:
            if entry.acked > state.acked:
                raise Inconsistent(f"ack {entry.acked} of {entry.member} came back of {state}")
            state.last_ack = max(state.last_ack, entry.acked)
        return confirmed

    def _confirmed(self, up_to: int) -> tuple[object, ...]:
        confirmed: list[object] = []
        while self._confirms and self._confirms[0][0] <= up_to:
            confirmed.append(self._confirms.popleft()[1])
        return tuple(confirmed)


def _range(entry: MemberNews) -> Sequence[int]:
    return range(entry.first, entry.first + len(entry.pubs))
