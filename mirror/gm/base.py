"""The state of a group's member, and helpers that all parts of its behaviour use.

A member is one class in four files, each of which builds on the one before: `base` holds its state,
`ring` what it does in the ring, `joining` how it gets into the ring, and `member` its events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from random import Random
from typing import NamedTuple

from warren.core.definitions.records import GroupRecord
from warren.mirror.carriers.ports import MemberId, Members, StopReason
from warren.mirror.gm.circulation import Circulation
from warren.mirror.gm.effects import Confirmed, Effect, Send, SetTimer, Stopped
from warren.mirror.gm.errors import NotJoined
from warren.mirror.gm.messages import Activity, Catchup, MemberNews, Message
from warren.mirror.gm.record_access import RecordAccess
from warren.mirror.gm.ring_links import RingLinks
from warren.mirror.gm.view import View


class MemberPhase(Enum):
    NEW = "new"
    JOINING = "joining"
    JOINED = "joined"
    DRAINING = "draining"
    """Joined, broadcasts no more, and stops when all its messages have gone round."""
    STOPPED = "stopped"


NEW, JOINING, JOINED = MemberPhase.NEW, MemberPhase.JOINING, MemberPhase.JOINED
DRAINING, STOPPED = MemberPhase.DRAINING, MemberPhase.STOPPED


class GmLimits(NamedTuple):
    """Limits of a member.

    A member may broadcast as long as its buffered and pending bytes stay below `held_bytes_max`.
    Messages of other members are accepted beyond that, as the senders limit them. The member
    reports congestion when it holds half of `held_bytes_max`, until it holds a quarter.
    """

    held_bytes_max: int = 32 << 20
    flush_bytes: int = 128 << 10
    suspicion_s: float = 0.1
    """Time from the news that a neighbour is down until it is declared dead: a broken link is often
    the beginning of a split that the store's majority decides."""
    left_suspicion_s: float = 2.0
    """The same time for the left neighbour, times a random number from 1 to 2: its own left
    neighbour is to declare it dead, if it can, as two writes of one record at once cost more than
    twice as much. The first member of the record waits `suspicion_s` only: it usually leads, and
    must not lose the lead to a broken link."""
    retry_s: float = 0.05
    """Time until the store, or a member that was not ready, is asked again, times a random number
    from 0.5 to 1.5."""
    news_wait_s: float = 0.1
    """Time for which news that only frees memory waits at a member for a publish to go with."""
    news_wait_bytes: int = 1 << 20
    """While a member holds more than this, such news does not wait."""
    founding_s: float = 2.0
    """Time that a founder waits for its group to be made; then it joins by itself."""


LIMITS = GmLimits()


class Ignored:
    """Frames that were not processed, by reason."""

    __slots__ = ("earlier_epoch", "earlier_link", "gap", "not_left")

    def __init__(self) -> None:
        self.earlier_epoch = 0
        self.earlier_link = 0
        self.gap = 0
        self.not_left = 0


class MemberBase:
    """One life of a member: after `Stopped` another member, under a new id, may join.

    A `strict` member raises `Inconsistent` instead of stopping with that reason.
    """

    def __init__(
        self,
        me: MemberId,
        epoch: int,
        rng: Random,
        limits: GmLimits = LIMITS,
        *,
        strict: bool = False,
    ) -> None:
        self.me = me
        self.epoch = epoch
        self.phase = NEW
        self.record: GroupRecord | None = None
        self.ignored = Ignored()
        self.congested = False
        self._view = View(0, me, me, frozenset(), (me,))
        self._owned = frozenset((me,))
        self._rng = rng
        self._limits = limits
        self._strict = strict
        self._epoch_seen = epoch
        # The highest version of the record that any message had.
        self._version_told = 0
        self._effects: list[Effect] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._access = RecordAccess(self._effects)
        self._links = RingLinks(me, self._effects)
        self._circulation = Circulation(me)
        self._timers: dict[int, Callable[[], None]] = {}
        self._timers_set = 0
        self._asked: MemberId | None = None
        self._has_asked = False
        # The members to put into a new group beside this one; and whether this member is itself a
        # founder that waits for its group.
        self._founders: Members = ()
        self._awaits_group = False
        self._unreachable: set[MemberId] = set()
        self._flush_is_due = False
        # News of members that waits to be passed on with the next publish.
        self._news_waiting: dict[MemberId, MemberNews] = {}
        self._news_timer_is_set = False
        self._all_live = False

    @property
    def view(self) -> View:
        """Neighbours, aliases and members in the version that this member knows."""
        return self._view

    @property
    def is_pending(self) -> bool:
        """Whether an answer of the store is awaited; until it comes, arriving messages wait."""
        return self._access.is_busy

    @property
    def circulation(self) -> Circulation:
        """The member's knowledge of messages, to be read only."""
        return self._circulation

    @property
    def held_bytes(self) -> int:
        return self._circulation.held_bytes

    @property
    def _is_alone(self) -> bool:
        return self._view.right == self.me

    # Helpers of all parts

    def _stop(self, reason: StopReason) -> None:
        if self.phase is STOPPED:
            return
        self.phase = STOPPED
        self._access.forget()
        self._inbox.clear()
        self._timers.clear()
        self._links.watch(set())
        self._effects.append(Stopped(reason))

    def _set_timer(
        self, action: Callable[[], None], delay_s: float, *, may_wait: bool = False
    ) -> None:
        self._timers_set += 1
        self._timers[self._timers_set] = action
        self._effects.append(SetTimer(self._timers_set, delay_s, may_wait))

    def _retry_delay(self) -> float:
        return self._limits.retry_s * (0.5 + self._rng.random())

    def _check_is_joined(self) -> None:
        if self.phase not in (JOINED, DRAINING):
            raise NotJoined(f"{self.me} is {self.phase.value}, not joined")

    def _confirm(self, tokens: tuple[object, ...]) -> None:
        if tokens:
            self._effects.append(Confirmed(tokens))

    def _send_catchup(self) -> None:
        self._links.catchup_version = self._view.version
        position = self._links.next_position()
        known = self._circulation.known()
        # The catchup says what the waiting news says.
        self._news_waiting.clear()
        self._send(self._view.right, Catchup(self.epoch, self._view.version, position, known))

    def _send_activity(self, entries: Iterable[MemberNews]) -> None:
        """Send news to the right neighbour, behind the news that waits for some.

        The right neighbour has its own publishes: it only has to hear that they have come round.
        """
        right = self._view.right
        news = [entry.without_payloads() if entry.member == right else entry for entry in entries]
        news = [*self._news_waiting.values(), *news]
        self._news_waiting.clear()
        position = self._links.next_position()
        self._send(right, Activity(self.epoch, self._view.version, position, tuple(news)))

    def _send(self, to: MemberId, message: Message) -> None:
        self._effects.append(Send(to, message))
