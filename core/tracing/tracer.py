"""The tracer of a node: it records lives of messages for all virtual hosts (`life_trace.py`).

Answerable for which messages are followed, and for handing records to those who keep them, a list
at a time. All of it is bounded. Selected messages beyond `FOLLOWED_PER_S` are not followed; records
are lost if writing does not keep up. Both are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from warren.core.ports import Clock, ContentCodec
from warren.core.scheduling.turns import Turns
from warren.core.tracing.trace_record import TraceRecord
from warren.core.tracing.trace_store import MemoryTraceStore, TraceStore

FOLLOWED_MAX = 100_000
"""Messages that are followed; after those the oldest is not any more. 200 octets each."""

FOLLOWED_PER_S = 1000.0
BURST = 2000.0
"""Messages of which a node begins to record the lives in a second, and at once. A life has some
four records of 300 octets."""

PENDING_MAX = 20_000
"""Records that wait to be handed over."""

HAND_OVER_S = 0.2
"""How long a record waits for others."""

ADD_US = 5
"""The cost of a record, in the microseconds of `core/scheduling/turns.py`."""


class TraceCounts(NamedTuple):
    """Since the node was started. `passed_over` messages were selected and not followed, because
    there were too many; `nameless` ones because they have no id; `lost` records were not kept.
    `too_slow`: tests by filters that took too long, which select nothing."""

    recorded: int
    followed: int
    passed_over: int
    nameless: int
    lost: int
    too_slow: int


class Tracer:
    """The traces of one node."""

    def __init__(self, node: str, clock: Clock, turns: Turns, codec: ContentCodec) -> None:
        self.node = node
        self.clock = clock
        self.turns = turns
        self.codec = codec
        self.store: TraceStore = MemoryTraceStore()
        # Callbacks that get all records, a list at a time; they must not wait.
        self.listeners: list[Callable[[Sequence[TraceRecord]], None]] = []
        # Called with each message that is followed from now on: other nodes are to follow it, too.
        self.on_follow: Callable[[str, str], None] = lambda vhost, name: None
        self.nameless = 0
        self.too_slow = 0
        self._recorded = 0
        self._passed_over = 0
        self._lost = 0
        # By virtual host and id, the oldest first.
        self.all_followed: dict[tuple[str, str | None], None] = {}
        self._budget = BURST
        self._budget_at = clock.now()
        self._pending: list[TraceRecord] = []

    @property
    def counts(self) -> TraceCounts:
        return TraceCounts(
            self._recorded,
            len(self.all_followed),
            self._passed_over,
            self.nameless,
            self._lost,
            self.too_slow,
        )

    # Followed messages

    def is_followed(self, vhost: str, name: str) -> bool:
        return (vhost, name) in self.all_followed

    def follow(self, vhost: str, name: str) -> bool:
        """Follow a message from now on, unless there are too many. Other nodes are told."""
        now = self.clock.now()
        self._budget = min(BURST, self._budget + (now - self._budget_at) * FOLLOWED_PER_S)
        self._budget_at = now
        if self._budget < 1:
            self._passed_over += 1
            return False
        self._budget -= 1
        self.follow_too(vhost, name)
        self.on_follow(vhost, name)
        return True

    def follow_too(self, vhost: str, name: str) -> None:
        """Follow a message that another node follows, or that was followed before a restart."""
        followed = self.all_followed
        followed[vhost, name] = None
        if len(followed) > FOLLOWED_MAX:
            del followed[next(iter(followed))]

    def followed(self, vhost: str, count: int) -> list[str]:
        """The ids of messages of a virtual host that are followed, the newest first."""
        found: list[str] = []
        for its_vhost, name in reversed(self.all_followed):
            if its_vhost == vhost and name is not None:
                found.append(name)
                if len(found) == count:
                    break
        return found

    # Records

    def add(self, record: TraceRecord) -> None:
        """Hand the record over in a moment."""
        self.turns.spend(ADD_US)
        if len(self._pending) >= PENDING_MAX:
            self._lost += 1
            return
        if not self._pending:
            self.clock.call_later(HAND_OVER_S, self.hand_over)
        self._pending.append(record)

    def hand_over(self) -> None:
        """Hand over the records that wait."""
        records, self._pending = self._pending, []
        if not records:
            return
        lost = self.store.keep(records)
        self._lost += lost
        self._recorded += len(records) - lost
        for listen in self.listeners:
            listen(records)
