"""Quotas: how many messages and octets queues may hold together.

Quotas are limits in RabbitMQ's style (`core/access/limits.py`): of a virtual host, `max-messages`
and `max-bytes` for all its queues and `max-queue-messages` and `max-queue-bytes` for each of them;
of a user, `max-messages` and `max-bytes` for all queues the user has declared. A publish that would
exceed one is refused with a text that names the limit. Messages that the broker itself
moves are never refused: a dead letter counts in its new queue, and is not lost because of a quota.

Messages are not counted one by one, which would cost every publisher. A count is made when the last
count and the publishes since then would exceed the limit. Counting takes at most `COUNTING_SHARE`
of the time: a thousand queues are counted every 10 ms at most. Ready and pending messages count,
and the octets of ready ones.

In a cluster each node counts the queues it leads, and tells the others every second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Protocol, TypeVar

from warren.core.access.limits import QUEUE_QUOTAS, USER_QUOTAS, VHOST_QUOTAS, effective
from warren.core.errors import PreconditionFailed
from warren.core.messages.stock import NOTHING, Stock
from warren.core.ports import Clock
from warren.core.scheduling.turns import Turns

COUNT_S = 0.3e-6
"""The time that counting one queue takes."""

COUNTED_AT_ONCE = 500
COUNTED_US = 150
"""Queues counted between two checks whether the turn is over, and the cost of these, in the
microseconds of `core/scheduling/turns.py`."""

COUNTING_SHARE = 0.03
"""The share of the time that counting for one quota may take."""


class Counted(Protocol):
    """The part of a queue that quotas use."""

    @property
    def is_here(self) -> bool:
        """Whether this node leads it."""

    @property
    def name(self) -> str: ...

    @property
    def vhost_name(self) -> str: ...

    @property
    def declared_by(self) -> str:
        """The name of a user; empty if it is not known."""

    def stock(self) -> Stock:
        """What the queue holds, if this node leads it."""


Q = TypeVar("Q", bound=Counted)


def name_of(queue: Counted) -> str:
    """Return the name by which nodes tell each other what a queue holds."""
    return f"queue '{queue.name}' in vhost '{queue.vhost_name}'"


class Ceiling:
    """The two limits of a quota: messages and octets, None for any number."""

    __slots__ = ("messages", "octets")

    def __init__(self, limits: Mapping[str, int], messages: str, octets: str) -> None:
        self.messages = effective(limits, messages)
        self.octets = effective(limits, octets)

    def __bool__(self) -> bool:
        return self.messages is not None or self.octets is not None

    def reached_by(self, held: Stock) -> str | None:
        """Return which limit `held` exceeds, and its value; None if neither."""
        if self.messages is not None and held.messages > self.messages:
            return f"message limit ({self.messages})"
        if self.octets is not None and held.octets > self.octets:
            return f"byte limit ({self.octets})"
        return None


class Quota:
    """A limit on what some queues may hold together.

    `name`, the same at every node, says whose quota it is. `queues` returns those that it counts.
    """

    def __init__(
        self,
        name: str,
        ceiling: Ceiling,
        queues: Callable[[], Iterable[Counted]],
        elsewhere: Callable[[str], Stock],
        clock: Clock,
    ) -> None:
        self.name = name
        self._ceiling = ceiling
        self.queues = queues
        self._elsewhere = elsewhere
        self._clock = clock
        # The last count and the publishes since then; None before the first count.
        self._held: Stock | None = None
        self._count_from = 0.0

    def reached_by(self, more: Stock) -> str | None:
        """Return in words the limit that `more` would exceed; None if there is room."""
        if self._held is None:
            self.count()
        reached = self._ceiling.reached_by(self._with(more))
        if reached is not None and self._clock.now() >= self._count_from:
            self.count()
            reached = self._ceiling.reached_by(self._with(more))
        return None if reached is None else f"{reached} of {self.name} is reached"

    def add(self, more: Stock) -> None:
        """Note that `more` was published."""
        if self._held is not None:
            self._held = self._held.plus(more)

    def count(self) -> None:
        """Count the messages of the queues that this node leads."""
        queues = 0
        messages = octets = 0
        for queue in self.queues():
            queues += 1
            if queue.is_here:
                stock = queue.stock()
                messages += stock.messages
                octets += stock.octets
        self._held = Stock(messages, octets)
        self._count_from = self._clock.now() + queues * COUNT_S / COUNTING_SHARE

    def _with(self, more: Stock) -> Stock:
        assert self._held is not None
        return self._held.plus(self._elsewhere(self.name)).plus(more)


class VhostQuotas:
    """The quotas that publishes in a virtual host may meet.

    `whole` is the quota of the virtual host, `each` the limits of every single queue, `users` the
    quotas of users by their names.
    """

    def __init__(
        self,
        whole: Quota | None,
        each: Ceiling,
        users: Mapping[str, Quota],
        elsewhere: Callable[[str], Stock],
    ) -> None:
        self.whole = whole
        self.each = each
        self._users = users
        self._elsewhere = elsewhere

    def has_room(self, wanted: Mapping[Q, Stock]) -> bool:
        """Whether the quotas have room for publishes of this size to each of these queues."""
        return self._reached(wanted) is None

    def take(self, wanted: Mapping[Q, Stock]) -> None:
        """Count a publish. Raises `PreconditionFailed`, naming the limit, if there is no room."""
        reached = self._reached(wanted)
        if reached is not None:
            queue, limit = reached
            raise PreconditionFailed(
                f"cannot publish to queue '{queue.name}' in vhost '{queue.vhost_name}': {limit}"
            )
        self.add(wanted)

    def add(self, wanted: Mapping[Q, Stock]) -> None:
        """Count publishes for which there was room."""
        for quota, more in self._shares(wanted):
            quota.add(more)

    def _reached(self, wanted: Mapping[Q, Stock]) -> tuple[Counted, str] | None:
        if self.each:
            for queue, more in wanted.items():
                reached = self.each.reached_by(self._stock(queue).plus(more))
                if reached is not None:
                    return queue, f"{reached} of queues in vhost '{queue.vhost_name}' is reached"
        for quota, more in self._shares(wanted):
            reached = quota.reached_by(more)
            if reached is not None:
                return next(iter(wanted)), reached
        return None

    def _stock(self, queue: Counted) -> Stock:
        return queue.stock() if queue.is_here else self._elsewhere(name_of(queue))

    def _shares(self, wanted: Mapping[Q, Stock]) -> Iterator[tuple[Quota, Stock]]:
        """Yield each quota with its part of these publishes; none for a publish that reaches no
        queue."""
        if self.whole is not None and wanted:
            yield self.whole, reduce(Stock.plus, wanted.values(), NOTHING)
        if self._users:
            by_user: dict[str, Stock] = {}
            for queue, more in wanted.items():
                user = queue.declared_by
                by_user[user] = by_user.get(user, NOTHING).plus(more)
            for user, more in by_user.items():
                quota = self._users.get(user)
                if quota is not None:
                    yield quota, more


class Quotas:
    """All quotas of a node. `queues_of(vhost)` gives the queues of a virtual host."""

    def __init__(
        self,
        clock: Clock,
        queues_of: Callable[[str], Iterable[Counted]],
        vhosts: Callable[[], Iterable[str]],
    ) -> None:
        self._clock = clock
        self._queues_of = queues_of
        self._vhosts = vhosts
        self._told: dict[str, Mapping[str, Stock]] = {}
        self.of_users: dict[str, Quota] = {}
        self._of_vhosts: dict[str, Quota] = {}
        self._of_queues: dict[str, Ceiling] = {}

    def set_user_limits(self, user: str, limits: Mapping[str, int]) -> None:
        """Set the limits of a user, or remove them if there are none. The caller then asks
        `of_vhost` again for every virtual host."""
        self.of_users.pop(user, None)
        ceiling = Ceiling(limits, *USER_QUOTAS)
        if ceiling:
            queues = self._declared_by(user)
            self.of_users[user] = self._quota(f"user '{user}'", ceiling, queues)

    def of_vhost(self, vhost: str, limits: Mapping[str, int]) -> VhostQuotas | None:
        """Make the quotas for publishes in a virtual host with these limits; None if there are
        none."""
        self.forget_vhost(vhost)
        ceiling = Ceiling(limits, *VHOST_QUOTAS)
        each = Ceiling(limits, *QUEUE_QUOTAS)
        if each:
            self._of_queues[vhost] = each
        if ceiling:
            self._of_vhosts[vhost] = self._quota(
                f"vhost '{vhost}'", ceiling, lambda: self._queues_of(vhost)
            )
        if not (ceiling or each or self.of_users):
            return None
        whole = self._of_vhosts.get(vhost)
        return VhostQuotas(whole, each, self.of_users, self._elsewhere)

    def forget_vhost(self, vhost: str) -> None:
        """Forget the limits of a virtual host."""
        self._of_vhosts.pop(vhost, None)
        self._of_queues.pop(vhost, None)

    async def held_here(self, turns: Turns) -> dict[str, Stock]:
        """Count in turns what the queues that this node leads hold, by the names of quotas. A queue
        with a limit of its own is included if it holds half of it or more."""
        held: dict[str, Stock] = {}
        for quota in [*self._of_vhosts.values(), *self.of_users.values()]:
            held[quota.name] = NOTHING
            async for queue in _in_turns(quota.queues(), turns):
                held[quota.name] = held[quota.name].plus(queue.stock())
        for vhost, each in list(self._of_queues.items()):
            async for queue in _in_turns(self._queues_of(vhost), turns):
                stock = queue.stock()
                if each.reached_by(stock.plus(stock)):
                    held[name_of(queue)] = stock
        return {name: stock for name, stock in held.items() if stock != NOTHING}

    def told(self, node: str, held: Mapping[str, Stock]) -> None:
        """Note what the queues that another node leads hold, by the names of quotas; nothing when
        the node is gone."""
        if held:
            self._told[node] = held
        else:
            self._told.pop(node, None)

    def _quota(self, name: str, ceiling: Ceiling, queues: Callable[[], Iterable[Counted]]) -> Quota:
        return Quota(name, ceiling, queues, self._elsewhere, self._clock)

    def _declared_by(self, user: str) -> Callable[[], Iterator[Counted]]:
        def queues() -> Iterator[Counted]:
            for vhost in self._vhosts():
                for queue in self._queues_of(vhost):
                    if queue.declared_by == user:
                        yield queue

        return queues

    def _elsewhere(self, name: str) -> Stock:
        told = [held.get(name, NOTHING) for held in self._told.values()]
        return reduce(Stock.plus, told, NOTHING)


async def _in_turns(queues: Iterable[Q], turns: Turns) -> AsyncIterator[Q]:
    """Go through the queues that this node leads, in turns."""
    for number, queue in enumerate(list(queues)):
        if queue.is_here:
            yield queue
        if number % COUNTED_AT_ONCE == 0:
            turns.spend(COUNTED_US)
            await turns.pause()
