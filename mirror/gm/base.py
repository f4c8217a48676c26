"""What a member of a group is made of, and what all parts of its behaviour use.

`base` holds the state, `ring` what a member does in the ring, `joining` how it gets in,
and `member` its events. Each builds on the one before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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


class Phase(Enum):
    NEW = "new"
    JOINING = "joining"
    JOINED = "joined"
    DRAINING = "draining"
    """Joined, broadcasts nothing any more, stops when all has gone round."""
    STOPPED = "stopped"


NEW, JOINING, JOINED = Phase.NEW, Phase.JOINING, Phase.JOINED
DRAINING, STOPPED = Phase.DRAINING, Phase.STOPPED


class GmLimits(NamedTuple):
    """`held_bytes_max` bounds what is buffered and pending when this member broadcasts.

    Others' messages are accepted beyond it; they are bounded at their senders. From half of it on
    the member says that it is congested, until it holds a quarter.
    """

    held_bytes_max: int = 32 << 20
    flush_bytes: int = 128 << 10
    suspicion_s: float = 0.1
    """Between the news that a neighbour is down and declaring it dead: a broken link often is the
    beginning of a split that the store's majority decides."""
    left_suspicion_s: float = 2.0
    """The same for the left neighbour, up to twice as long: its own left neighbour is to declare it
    dead, if it can, as two that write one record at once cost more than twice as much. The first in
    the record does not wait: it usually leads, and is not to lose that to a broken link."""
    retry_s: float = 0.05
    """Until the store, or a member that was not ready, is asked again; half to one and a half."""
    founding_s: float = 2.0
    """How long a member waits that is to be there from the beginning, until it joins by itself."""


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
    """One member, once: after `Stopped` another one, under a new id, may join.

    `strict` raises `Inconsistent` instead of stopping with that reason.
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
        # The highest version of the record that anybody has told of.
        self._version_told = 0
        self._effects: list[Effect] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._access = RecordAccess(self._effects, self._retry_store_later)
        self._links = RingLinks(me, self._effects)
        self._circulation = Circulation(me)
        self._timers: dict[int, Callable[[], None]] = {}
        self._timers_set = 0
        self._asked: MemberId | None = None
        self._has_asked = False
        # Who is to be in a group from its beginning; and whether this member waits for that.
        self._founders: Members = ()
        self._awaits_group = False
        self._unreachable: set[MemberId] = set()
        self._flush_is_due = False

    @property
    def view(self) -> View:
        """Neighbours, aliases and members as of the version this member knows."""
        return self._view

    @property
    def is_pending(self) -> bool:
        """Whether the store is asked, so that what arrives has to wait."""
        return self._access.is_busy

    @property
    def circulation(self) -> Circulation:
        """What it knows of messages, to be looked at only."""
        return self._circulation

    @property
    def held_bytes(self) -> int:
        return self._circulation.held_bytes

    @property
    def _is_alone(self) -> bool:
        return self._view.right == self.me

    # Used by all parts

    def _stop(self, reason: StopReason) -> None:
        if self.phase is STOPPED:
            return
        self.phase = STOPPED
        self._access.forget()
        self._inbox.clear()
        self._timers.clear()
        self._links.watch(set())
        self._effects.append(Stopped(reason))

    def _set_timer(self, action: Callable[[], None], delay_s: float) -> None:
        self._timers_set += 1
        self._timers[self._timers_set] = action
        self._effects.append(SetTimer(self._timers_set, delay_s))

    def _retry_store_later(self) -> None:
        self._set_timer(self._access.retry, self._retry_delay())

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
        self._send(self._view.right, Catchup(self.epoch, self._view.version, position, known))

    def _send_activity(self, entries: list[MemberNews]) -> None:
        position = self._links.next_position()
        message = Activity(self.epoch, self._view.version, position, tuple(entries))
        self._send(self._view.right, message)

    def _send(self, to: MemberId, message: Message) -> None:
        self._effects.append(Send(to, message))
