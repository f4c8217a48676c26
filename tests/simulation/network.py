"""Connections between processes that delay, break and stall; knows nothing of what they carry.

Processes are `Endpoint`s, each at a site (its node). Between two there is one connection at a time,
made when one is needed. What is sent arrives in order after some delay, or not at all:

- when a connection *breaks*, what was on its way is cut at some point, for each direction: what
  came before it arrives, the rest never does. Both ends are told that the other is down, after all
  that still arrives (`down_may_overtake`: or before). A new connection carries nothing of the old.
- between sites that are *blocked*, nothing arrives; the connection breaks when that was noticed.
  Blocks have a direction, so a partition may be full, partial or one way, and come and go.
- a process that is *stalled* reads nothing until it goes on.
- when a process *ends*, its connections break; who asks for one later is told that it is down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any, Protocol, TypeAlias

from scheduler import Scheduler

Address: TypeAlias = Hashable
DETECTION_S = 0.3
"""Until a blocked connection is found to be dead, at most."""


class Endpoint(Protocol):
    """A process on the network."""

    address: Address
    site: str

    def arrived(self, sender: Address, parcel: Any) -> None: ...

    def down(self, peer: Address) -> None:
        """The connection to the peer broke, or none can be made."""
        ...


class Connection:
    """`on_way[address]` is what has not arrived there, with the time at which it may."""

    __slots__ = ("ends", "is_broken", "on_way")

    def __init__(self, one: Address, other: Address) -> None:
        self.ends = (one, other)
        self.is_broken = False
        self.on_way: dict[Address, deque[Any]] = {one: deque(), other: deque()}

    def sender_to(self, to: Address) -> Address:
        return self.ends[0] if self.ends[1] == to else self.ends[1]


class _Down:
    """In place of a parcel: the connection ends here."""


DOWN = _Down()


class Network:
    def __init__(self, scheduler: Scheduler, delay_s: tuple[float, float] = (0.0005, 0.01)) -> None:
        self._scheduler = scheduler
        self._random = scheduler.random
        self._delay_s = delay_s
        self.down_may_overtake = False
        self._endpoints: dict[Address, Endpoint] = {}
        self._connections: dict[frozenset[Address], Connection] = {}
        self._watches: dict[frozenset[Address], set[Address]] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._stalled: set[Address] = set()
        self._slow: dict[Address, float] = {}
        self._held_back: dict[tuple[Connection, Address], None] = {}
        self._last_due: dict[tuple[Address, Address], float] = {}

    def attach(self, endpoint: Endpoint) -> None:
        assert endpoint.address not in self._endpoints, endpoint.address
        self._endpoints[endpoint.address] = endpoint

    def end(self, address: Address, *, politely: bool) -> None:
        """A process ends; politely: all that it sent still arrives."""
        for connection in [c for c in self._connections.values() if address in c.ends]:
            self._break(connection, keep_all_of=address if politely else None)
        del self._endpoints[address]

    def send(self, sender: Address, to: Address, parcel: Any) -> None:
        """Nothing arrives if no connection can be made; who monitors is told."""
        connection = self._connect(sender, to)
        if connection is not None:
            self._put(connection, to, parcel)

    def monitor(self, watcher: Address, peer: Address) -> None:
        """`down` is called when the connection breaks, soon if none can be made."""
        pair = frozenset((watcher, peer))
        self._watches.setdefault(pair, set()).add(watcher)
        if self._connect(watcher, peer) is None:
            self._scheduler.after(self._delay(), lambda: self._tell_down(watcher, peer))

    def demonitor(self, watcher: Address, peer: Address) -> None:
        self._watches.get(frozenset((watcher, peer)), set()).discard(watcher)

    # Faults

    def break_connection(self, one: Address, other: Address) -> None:
        connection = self._connections.get(frozenset((one, other)))
        if connection is not None:
            self._break(connection)

    def block(self, site: str, other: str) -> None:
        """Nothing gets from the first to the second; connections are found dead later."""
        self._blocked.add((site, other))
        for connection in list(self._connections.values()):
            if {self._site(end) for end in connection.ends} == {site, other}:
                self._scheduler.after(
                    self._random.uniform(0, DETECTION_S), lambda c=connection: self._detect(c)
                )

    def unblock(self, site: str, other: str) -> None:
        self._blocked.discard((site, other))
        self._wake()

    def stall(self, address: Address) -> None:
        self._stalled.add(address)

    def resume(self, address: Address) -> None:
        self._stalled.discard(address)
        self._wake()

    def slow_down(self, address: Address, delay_s: float) -> None:
        """All that goes to the process takes so much longer."""
        self._slow[address] = delay_s

    def heal(self) -> None:
        self._blocked.clear()
        self._stalled.clear()
        self._slow.clear()
        self._wake()

    def connections(self) -> list[tuple[Address, Address]]:
        return [connection.ends for connection in self._connections.values()]

    def on_way(self, sender: Address, to: Address) -> list[Any]:
        """What the sender sent on the present connection and has not arrived."""
        connection = self._connections.get(frozenset((sender, to)))
        return [] if connection is None else [parcel for _, parcel in connection.on_way[to]]

    # Connections

    def _connect(self, one: Address, other: Address) -> Connection | None:
        pair = frozenset((one, other))
        connection = self._connections.get(pair)
        if connection is not None:
            return connection
        if one not in self._endpoints or other not in self._endpoints:
            return None
        site, other_site = self._site(one), self._site(other)
        if (site, other_site) in self._blocked or (other_site, site) in self._blocked:
            return None
        connection = self._connections[pair] = Connection(one, other)
        return connection

    def _site(self, address: Address) -> str:
        endpoint = self._endpoints.get(address)
        return "" if endpoint is None else endpoint.site

    def _delay(self) -> float:
        return self._random.uniform(*self._delay_s)

    def _put(self, connection: Connection, to: Address, parcel: Any) -> None:
        due = self._scheduler.now + self._delay() + self._slow.get(to, 0.0)
        # What is left of an earlier connection comes before what a later one carries.
        direction = connection.sender_to(to), to
        due = max(due, self._last_due.get(direction, 0.0))
        self._last_due[direction] = due
        connection.on_way[to].append((due, parcel))
        self._scheduler.at(due, lambda: self._arrive(connection, to))

    def _arrive(self, connection: Connection, to: Address) -> None:
        """Hand over what is due, as far as it can get through."""
        on_way = connection.on_way[to]
        sender = connection.sender_to(to)
        while on_way and on_way[0][0] <= self._scheduler.now:
            endpoint = self._endpoints.get(to)
            if endpoint is None:
                on_way.clear()
                return
            if to in self._stalled or self._is_blocked(connection, sender, to):
                self._held_back[connection, to] = None
                return
            _, parcel = on_way.popleft()
            if parcel is DOWN:
                self._tell_down(to, sender)
            else:
                endpoint.arrived(sender, parcel)

    def _is_blocked(self, connection: Connection, sender: Address, to: Address) -> bool:
        # What is left of a broken connection is in the receiver's own buffers already.
        blocked = (self._site(sender), self._site(to)) in self._blocked
        return blocked and not connection.is_broken

    def _detect(self, connection: Connection) -> None:
        one, other = map(self._site, connection.ends)
        if (one, other) in self._blocked or (other, one) in self._blocked:
            self._break(connection)

    def _break(self, connection: Connection, keep_all_of: Address | None = None) -> None:
        if connection.is_broken:
            return
        one, other = connection.ends
        blocked = {
            to: self._is_blocked(connection, sender, to)
            for sender, to in ((one, other), (other, one))
        }
        connection.is_broken = True
        del self._connections[frozenset(connection.ends)]
        for sender, to in ((one, other), (other, one)):
            on_way = connection.on_way[to]
            kept = 0 if blocked[to] else self._random.randint(0, len(on_way))
            if sender != keep_all_of or blocked[to]:
                while len(on_way) > kept:
                    on_way.pop()
            if self.down_may_overtake:
                self._scheduler.after(
                    self._delay(), lambda to=to, sender=sender: self._tell_down(to, sender)
                )
            else:
                self._put(connection, to, DOWN)
            self._scheduler.after(0.0, lambda to=to: self._arrive(connection, to))

    def _tell_down(self, watcher: Address, peer: Address) -> None:
        watchers = self._watches.get(frozenset((watcher, peer)), set())
        endpoint = self._endpoints.get(watcher)
        if watcher in watchers and endpoint is not None:
            watchers.discard(watcher)
            endpoint.down(peer)

    def _wake(self) -> None:
        """Let go on what waited for a block or a stall to end."""
        for connection, to in self._held_back:
            self._scheduler.after(0.0, lambda c=connection, to=to: self._arrive(c, to))
        self._held_back.clear()
