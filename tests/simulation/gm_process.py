"""A process with one member of a group: its shell on the simulated network, and the layer above.

Each effect is a step, and the process may be made to crash before any of them. The layer above
checks what it is told as it is told (G1, G4 to G7, G13), and remembers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from network import Network
from scheduler import Scheduler
from shared_store import Answer, Outcome, SharedStore

from warren.core.definitions.records import GroupRecord
from warren.mirror.carriers.ports import MemberId, Members, StopReason
from warren.mirror.gm.base import DRAINING, JOINED, JOINING, GmLimits
from warren.mirror.gm.catch_up import missed
from warren.mirror.gm.circulation import Circulation
from warren.mirror.gm.effects import (
    Demonitor,
    Effect,
    EpochSeen,
    Monitor,
    ReadRecord,
    Send,
    SetTimer,
    ShellEffect,
    Transact,
)
from warren.mirror.gm.errors import BroadcastRefused, Congested, Inconsistent
from warren.mirror.gm.handout import Handout
from warren.mirror.gm.member import Member
from warren.mirror.gm.messages import NONE, Catchup, Known, RingFrame, decode, encode

GROUP = "group"
ALONE = b"alone"
"""What a member sends that nobody else can get; the others' payloads are their numbers."""


class Crashed(BaseException):
    """The process ended within an effect."""


class World:
    """What processes share. `confirmed` is called with the process and a confirmed number."""

    def __init__(self, scheduler: Scheduler, seen: Counter[str]) -> None:
        self.scheduler = scheduler
        self.seen = seen
        self.network = Network(scheduler)
        self.store: SharedStore[GroupRecord] = SharedStore(scheduler, lambda group: group.version)
        self.epoch = 1
        self.limits = GmLimits(
            suspicion_s=0.02, left_suspicion_s=0.05, retry_s=0.01, founding_s=0.1
        )
        self.confirmed: Callable[[Process, int], None] = lambda process, number: None
        self.ended: Callable[[Process, StopReason | None], None] = lambda process, reason: None
        self.inheritors: dict[MemberId, set[MemberId]] = {}


class Process:
    """Implements `Endpoint` and `UpperLayer`."""

    def __init__(self, world: World, me: MemberId) -> None:
        self.world = world
        self.address = me
        self.site = me.node
        self.member = Member(me, world.epoch, world.scheduler.random, world.limits, strict=True)
        self.member.circulation.load = self._note_base  # type: ignore[method-assign]
        self.handout = Handout(self)
        self.is_over = False
        self.reason: StopReason | None = None
        self.steps_left: int | None = None
        self.steps = 0
        self.known: set[MemberId] = set()
        self.ever_known: set[MemberId] = set()
        self.has_joined = False
        self.base: dict[MemberId, int] | None = None
        self.last: dict[MemberId, int] = {}
        self.own: list[bytes] = []
        self.tokens: list[int | None] = []
        self.delivered = 0
        self.on_deliver: Callable[[MemberId, bytes], None] | None = None
        self._flush_is_set = False
        world.network.attach(self)
        world.store.watch(GROUP, lambda version: self.event(self.member.record_changed, version))

    # Events

    def start(self, founders: Members = (), *, awaits_group: bool = False) -> None:
        self.event(lambda: self.member.start(founders, awaits_group=awaits_group))

    def arrived(self, sender: Any, parcel: bytes) -> None:
        if self.is_over:
            return
        frame = decode(parcel)
        assert frame.sender == sender and frame.to == self.address, frame
        if isinstance(frame.message, Catchup):
            self._look_at(sender, frame.message)
        self.event(self.member.receive, sender, frame.message)

    def down(self, peer: Any) -> None:
        self.event(self.member.peer_down, peer)

    def broadcast(self, confirm: bool) -> bool:
        """Broadcast the next number, as long as the member wants to be fed."""
        member = self.member
        if self.is_over or member.congested:
            self.world.seen["not fed because congested"] += not self.is_over
            return False
        alone = member.view.right == self.address
        number = member.circulation.last_broadcast + 1
        payload = ALONE if alone else b"%d" % number
        before = self.member.held_bytes, len(self.own)
        try:
            effects = (
                member.confirmed_broadcast(payload, None if alone else number)
                if confirm
                else member.broadcast(payload)
            )
        except BroadcastRefused as error:
            # G14: nothing came of it.
            self.world.seen[f"refused: {type(error).__name__}"] += 1
            assert (self.member.held_bytes, len(self.own)) == before
            assert isinstance(error, Congested) or member.phase is not JOINED
            return False
        self.own.append(payload)
        if confirm:
            self.tokens.append(None if alone else number)
        self.event(lambda: effects)
        self._flush_soon()
        return True

    def event(self, method: Callable[..., list[Effect]], *args: Any) -> None:
        if self.is_over:
            return
        try:
            self.handout.run(method(*args), self.carry_out)
        except Crashed:
            self.world.seen["crashed in an effect"] += 1
            self.end(None)
        except (Inconsistent, AssertionError) as error:
            raise AssertionError(f"{self.address}: {error}") from error
        if not self.is_over:
            self.check()

    def end(self, reason: StopReason | None, *, politely: bool = False) -> None:
        """The process is gone."""
        assert not self.is_over
        if self.member.phase is JOINING:
            self.world.seen["died while joining"] += 1
        self.is_over = True
        self.reason = reason
        self.world.scheduler.note(f"{self.address} ends {reason}")
        self.world.network.end(self.address, politely=politely)
        ignored = self.member.ignored
        for name in ignored.__slots__:
            self.world.seen[f"ignored: {name}"] += getattr(ignored, name)
        self.world.ended(self, reason)

    def _flush_soon(self) -> None:
        if not self._flush_is_set:
            self._flush_is_set = True
            self.world.scheduler.after(self.world.scheduler.random.uniform(0, 0.004), self._flush)

    def _flush(self) -> None:
        self._flush_is_set = False
        self.event(self.member.flush)

    # Effects

    def carry_out(self, effect: ShellEffect) -> None:
        self._step()
        EFFECTS[type(effect)](self, effect)

    def _step(self) -> None:
        self.steps += 1
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left <= 0:
                raise Crashed

    def _send(self, effect: Send) -> None:
        octets = encode(RingFrame(self.address, effect.to, effect.message))
        self.world.scheduler.note(f"{self.address}>{effect.to} {octets!r}")
        self.world.network.send(self.address, effect.to, octets)

    def _read(self, effect: ReadRecord) -> None:
        def answer(result: Answer[GroupRecord]) -> None:
            if result.outcome is Outcome.DONE:
                self.event(self.member.record_read, effect.request, result.value)
            else:
                self.event(self.member.store_unavailable, effect.request)

        store = self.world.store
        last = store.version(GROUP)
        if effect.version is not None and effect.version <= last and store.random.random() < 0.7:
            # The process has a copy, which is late, or never comes.
            version = store.random.randint(effect.version, last)
            self.world.seen["read a record that was known"] += 1
            self.world.seen["read an old record"] += version < last
            known = store.history[GROUP][version - 1] if version else None
            self.world.scheduler.after(
                0.0, lambda: self.event(self.member.record_read, effect.request, known)
            )
            return
        store.read(GROUP, answer)

    def _transact(self, effect: Transact) -> None:
        def answer(result: Answer[GroupRecord]) -> None:
            self.world.seen[f"transaction {result.outcome.value}"] += 1
            if result.outcome is Outcome.DONE:
                self.event(self.member.transaction_committed, effect.request)
            elif result.outcome is Outcome.CONFLICT:
                self.event(self.member.transaction_refused, effect.request, result.value)
            else:
                self.event(self.member.store_unavailable, effect.request)

        self.world.scheduler.note(f"{self.address} {effect}")
        self.world.store.compare_and_set(GROUP, effect.expected_version, effect.record, answer)

    def _monitor(self, effect: Monitor) -> None:
        self.world.network.monitor(self.address, effect.member)

    def _demonitor(self, effect: Demonitor) -> None:
        self.world.network.demonitor(self.address, effect.member)

    def _set_timer(self, effect: SetTimer) -> None:
        self.world.scheduler.after(
            effect.delay_s, lambda: self.event(self.member.timer_fired, effect.timer)
        )

    def _epoch_seen(self, effect: EpochSeen) -> None:
        assert effect.epoch <= self.world.epoch
        delay_s = self.world.scheduler.random.uniform(0, 0.05)
        self.world.scheduler.after(delay_s, lambda: self.event(self.member.set_epoch, effect.epoch))

    # Upcalls

    def joined(self, members: Members) -> None:
        self._step()
        self._note(f"joined {members}")
        assert not self.has_joined and self.address in members
        self.has_joined = True
        self.known = set(members)
        self.ever_known = set(members)
        if self.base is None:
            self.base = {}

    def members_changed(self, births: Members, deaths: Members) -> None:
        self._step()
        self._note(f"born {births} dead {deaths}")
        assert self.has_joined
        assert not self.known & set(births), "born twice"
        assert set(deaths) <= self.known, "died unborn"
        assert self.address not in deaths
        self.known = (self.known | set(births)) - set(deaths)
        self.ever_known |= self.known

    def deliver(self, sender: MemberId, payload: bytes) -> None:
        self._step()
        self._note(f"gets {payload!r} of {sender}")
        assert self.has_joined
        assert sender in self.known, f"a message of {sender}, who is not born or dead"
        self.delivered += 1
        if payload == ALONE:
            assert sender == self.address
            return
        number = int(payload)
        assert number == self.end_of(sender) + 1, f"{number} of {sender} after {self.last}"
        self.last[sender] = number
        if self.on_deliver is not None:
            self.on_deliver(sender, payload)

    def confirmed(self, tokens: tuple[object, ...]) -> None:
        self._step()
        self._note(f"confirmed {tokens}")
        for token in tokens:
            assert self.tokens and self.tokens[0] == token, (self.tokens, token)
            self.tokens.pop(0)
            if isinstance(token, int):
                self.world.confirmed(self, token)
            else:
                self.world.seen["confirmed alone"] += 1

    def congestion(self, congested: bool) -> None:
        self._step()
        self.world.seen[f"congested {congested}"] += 1

    def stopped(self, reason: StopReason) -> None:
        self.world.seen[f"stopped: {reason.value}"] += 1
        self.end(reason, politely=self.world.scheduler.random.random() < 0.5)

    # What is known of it

    @property
    def is_joined(self) -> bool:
        return not self.is_over and self.member.phase in (JOINED, DRAINING)

    def end_of(self, sender: MemberId) -> int:
        """The number of the sender's last message delivered here, or known when this one joined."""
        base = (self.base or {}).get(sender, NONE)
        return self.last.get(sender, base)

    def check(self) -> None:
        """G8 to G10, G16: what holds after each event."""
        member = self.member
        for state in member.circulation.states.values():
            state.check()
        if self.is_joined:
            assert member.record is not None
            version = member.record.version
            assert version == member.view.version
            # Versions are decided by the store, so that equal ones are the same record.
            assert member.record is self.world.store.history[GROUP][version - 1]
            self._see_aliases()
        assert member.circulation.buffer_bytes <= self.world.limits.held_bytes_max

    def _see_aliases(self) -> None:
        for alias in self.member.view.aliases:
            inheritors = self.world.inheritors.setdefault(alias, set())
            if self.address not in inheritors:
                inheritors.add(self.address)
                self.world.seen["alias inherited"] += 1
                self.world.seen["alias inherited from its heir"] += len(inheritors) > 1
                self.world.seen["alias with messages"] += not self.member.circulation.states[
                    alias
                ].is_settled

    def _look_at(self, sender: MemberId, catchup: Catchup) -> None:
        """Note what rare things a catchup brings."""
        member, seen = self.member, self.world.seen
        if catchup.epoch < member.epoch:
            return
        if self.is_joined and sender == member.view.left and not member.is_pending:
            if catchup.version > member._links.catchup_above and member._links.is_waiting:
                owned = member.view.aliases | {self.address}
                for entry in missed(member.circulation.states, catchup.known, owned):
                    whose = "returned" if entry.member in owned else "missed"
                    seen[f"catch-up with {whose} publishes"] += bool(entry.pubs)
                    seen[f"catch-up with {whose} acks"] += entry.acked != NONE

    def _note_base(self, known: Iterable[Known]) -> None:
        """G4: none of what a member begins with is delivered to it, and all that follows is."""
        self.base = {of.member: of.last_pub for of in known}
        waiting = any(of.pending for of in known)
        self.world.seen["joined while messages were on their way"] += waiting
        Circulation.load(self.member.circulation, known)

    def _note(self, text: str) -> None:
        self.world.scheduler.note(f"{self.address} {text}")


EFFECTS: dict[type, Callable[[Process, Any], None]] = {
    Send: Process._send,
    ReadRecord: Process._read,
    Transact: Process._transact,
    Monitor: Process._monitor,
    Demonitor: Process._demonitor,
    SetTimer: Process._set_timer,
    EpochSeen: Process._epoch_seen,
}


def alive(processes: Iterable[Process]) -> list[Process]:
    return [process for process in processes if not process.is_over]
