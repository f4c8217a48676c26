"""Serves the clients of other nodes: finds the queue and the session that a frame belongs to.

This node may hear of a queue later than a node whose clients use it, as each node applies
definitions in its own time. Publishes and questions for a queue that is not known here wait for it,
in order, and are refused when that takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from warren.core.errors import BrokerError, NotFound, QueueNotHere
from warren.core.messages.message_observer import TracedClient
from warren.core.node import HeldAfar, Node
from warren.core.ports import Timer
from warren.core.queues.local_queue import LocalQueue
from warren.core.scheduling.waiting import Event, Until
from warren.mirror.messages.calls import Calls, NodeDown
from warren.mirror.messages.cargo import Unpacker
from warren.mirror.messages.origin import origin_name
from warren.mirror.messages.post import Post, PostKind, Undeliverable
from warren.mirror.remote import frame_heads as heads
from warren.mirror.remote.remote_client import Effects, RemoteClient
from warren.mirror.remote.settling import PublishedReport, pack_report, unpack_numbers
from warren.mirror.remote.subscription import Subscription, Who
from warren.mirror.replication.mirroring import Mirroring

WAIT_FOR_QUEUE_S = 10.0
"""Seconds that frames wait for the definition of their queue; definitions take milliseconds."""


class _AwaitedQueue:
    """A queue that another node has named, but that is not known here yet."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        # Questions and frames, in the order in which they came.
        self.waiting: list[_Question | tuple[str, PostKind, bytes]] = []


class _Question(Event):
    """Happens when the question can be answered, or when the node that asked is out of reach."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True
        self.happen()


class QueueHost:
    """The sessions of other nodes' clients. Deliveries to them are numbered from `first_number`,
    which no earlier start of this node has reached; numbers have 64 bits."""

    def __init__(
        self, node: Node, post: Post, calls: Calls, mirroring: Mirroring, first_number: int
    ) -> None:
        self._node = node
        self._mirroring = mirroring
        self._post = post
        self._sessions: dict[str, dict[int, RemoteClient]] = {}
        self._delivery_numbers = count(first_number)
        self._awaited: dict[int, _AwaitedQueue] = {}
        # Publishes to queues that are being handed over, in order. They are not answered, so their
        # nodes send them again to the next leader.
        self._held: dict[int, list[tuple[str, bytes]]] = {}
        self._to_flush: dict[RemoteClient, str] = {}
        self._unpacker = Unpacker()
        self._congested: set[str] = set()
        for kind in _SERVED:
            post.handle(kind, self._handler(kind))
        post.watch(on_up=lambda node: None, on_down=self._down, on_congested=self._link_congested)
        calls.serve("queue.subscribe", self._subscribe)
        calls.serve("queue.hold", self._hold)
        calls.serve("queue.get", self._get)
        calls.serve("queue.counts", self._counts)
        calls.serve("queue.purge", self._purge)
        calls.serve("queue.delete", self._delete)
        calls.serve("queue.leave", self._leave)
        calls.serve("queue.resume", self._resume)
        node.local_queues.watch(self._queue_here, self._queue_gone)
        node.other_clients.append(self._held_afar)
        mirroring.hand_overs.on_stay = self._stays

    # Frames

    def _handler(self, kind: PostKind) -> Callable[[str, bytes], None]:
        return lambda node, payload: self._frame(node, kind, payload)

    def _frame(self, node: str, kind: PostKind, payload: bytes) -> None:
        if len(payload) < heads.QUEUE.size:
            raise Undeliverable(f"a frame of {len(payload)} octets for a queue")
        (queue_id,) = heads.QUEUE.unpack_from(payload)
        awaited = self._awaited.get(queue_id)
        if awaited is None and queue_id not in self._node.local_queues:
            if kind is not PostKind.PUBLISH:
                # Other frames are about consumers, deliveries or refusals, so the queue was here
                # once, and is gone.
                return
            awaited = self._await(queue_id)
        if awaited is not None:
            awaited.waiting.append((node, kind, payload))
            return
        self._serve(node, self._session(node, queue_id), kind, payload)

    def _serve(self, node: str, session: RemoteClient, kind: PostKind, payload: bytes) -> None:
        if kind is PostKind.PUBLISH and self._is_stale(session.queue, payload):
            # The publisher's node sends it again when it hears of the present epoch, and may have
            # sent it to another leader meanwhile.
            return
        if kind is PostKind.PUBLISH and session.queue.is_held:
            self._held.setdefault(session.queue.queue_id, []).append((node, payload))
        elif kind is PostKind.PUBLISH:
            queue_id, origin = session.queue.queue_id, self._origin(node)
            if self._node.alarms.raised:
                # If the queue has grown, the nodes that publish to it are told that it has.
                self._node.growth.holds_back(session.queue)
            with self._mirroring.from_afar.publishing(queue_id, origin):
                session.publish(self._unpacker.messages(payload, heads.PUBLISH.size))
            self._mirroring.from_afar.note_origin(queue_id, origin, session.received)
        elif kind is PostKind.SETTLE:
            session.judge(*unpack_numbers(payload, heads.QUEUE.size))
        elif kind is PostKind.HEARD:
            _, upto = heads.unpacked(heads.HEARD, payload)
            self._mirroring.from_afar.note_heard(session.queue.queue_id, self._origin(node), upto)
        elif kind is PostKind.CANCEL:
            _, number = heads.unpacked(heads.CONSUMER, payload)
            session.cancel(number)
        else:
            _, number, blocked, _ = heads.unpacked(heads.CONSUMER_STATE, payload)
            session.set_blocked(number, bool(blocked))

    def _is_stale(self, queue: LocalQueue, payload: bytes) -> bool:
        """Whether the publishes were sent in an earlier epoch of the queue."""
        _, epoch = heads.unpacked(heads.PUBLISH, payload)
        return epoch < self._mirroring.epoch_of(queue)

    def _stays(self, queue: LocalQueue) -> None:
        for node, payload in self._held.pop(queue.queue_id, ()):
            if node not in self._post.peers():
                # The link to the node is down, which is reported next: the node sends its publishes
                # again.
                continue
            self._serve(node, self._session(node, queue.queue_id), PostKind.PUBLISH, payload)

    # Questions

    async def _subscribe(self, node: str, queue_id: int, *subscription: Any) -> int | None:
        session = await self._asked(node, queue_id)
        offset = session.subscribe(Subscription(*subscription))
        # The answer to this question goes before the first delivery.
        self._node.clock.call_soon(session.deliver)
        return offset

    async def _hold(self, node: str, queue_id: int, number: int) -> None:
        """Stop deliveries to the consumer; the answer comes after all deliveries made so far."""
        session = await self._asked(node, queue_id)
        session.set_blocked(number, True)

    async def _get(self, node: str, queue_id: int, no_ack: bool, client: Who) -> Any:
        session = await self._asked_of_leader(node, queue_id)
        got = session.get(no_ack, TracedClient(*client, True))
        while session.queue.is_withheld and got[0] is None:
            session = await self._asked_of_leader(node, queue_id)
            got = session.get(no_ack, TracedClient(*client, True))
        return got

    async def _counts(self, node: str, queue_id: int) -> tuple[int, int]:
        session = await self._asked(node, queue_id)
        return await session.queue.counts()

    async def _purge(self, node: str, queue_id: int) -> int:
        session = await self._asked_of_leader(node, queue_id)
        return await session.queue.empty()

    async def _delete(self, node: str, queue_id: int, if_unused: bool, if_empty: bool) -> int:
        session = await self._asked(node, queue_id)
        await session.queue.end(if_unused=if_unused, if_empty=if_empty)
        return session.queue.left_ready

    async def _leave(self, node: str, queue_id: int) -> None:
        """Delete an auto-delete queue whose last consumer at the asking node has left. The answer
        comes when all nodes know that it is gone, or when others use it."""
        if queue_id in self._node.local_queues:
            queue = self._node.local_queues[queue_id]
            try:
                await queue.end(if_unused=True, if_empty=False)
            except BrokerError:
                if not queue.deleted:
                    raise
        # It may be gone here before other nodes know.
        commit = self._node.metadata.uncommitted()
        if commit is not None:
            await Until(commit, lambda: commit.done)

    async def _resume(self, node: str, queue_id: int) -> tuple[int | None, list[int]]:
        """The number up to which the queue has all publishes of the node, and those it refused.

        The number is None if it cannot be known. The node begins anew: its consumers subscribe
        again, and the messages they had go back.
        """
        queue = (await self._asked(node, queue_id)).queue
        self._end_session(node, queue_id)
        origin = self._origin(node)
        received = self._mirroring.from_afar.received_from(queue_id, origin)
        decided = Event()
        safe = False

        def decide(all_safe: bool) -> None:
            nonlocal safe
            safe = all_safe
            decided.happen()

        self._mirroring.when_mirrors_have_all(queue, decide)
        await decided
        if not safe:
            raise NotFound(f"queue {queue_id} is not led by node '{self._node.name}' any more")
        return received, sorted(self._mirroring.from_afar.refused_of(queue_id, origin))

    def _origin(self, node: str) -> str:
        """The name of the publishes of a node's present run."""
        return origin_name(node, self._post.peers()[node].incarnation)

    async def _asked(self, node: str, queue_id: int) -> RemoteClient:
        """The session of the asking node, as soon as the queue is known here."""
        if queue_id in self._awaited or queue_id not in self._node.local_queues:
            question = _Question(node)
            self._await(queue_id).waiting.append(question)
            await question
            if question.is_dropped or queue_id not in self._node.local_queues:
                raise QueueNotHere(f"queue {queue_id} is not at node '{self._node.name}'")
        if node not in self._post.peers():
            # The node has gone while its question waited: its sessions have ended.
            raise NodeDown(node)
        return self._session(node, queue_id)

    async def _asked_of_leader(self, node: str, queue_id: int) -> RemoteClient:
        """The session, as soon as this node knows that it goes on leading the queue, and that
        messages may be handed out.

        Raises `NotFound` when another node leads: the asking node asks the next leader, and has
        already done so if its link broke.
        """
        session = await self._asked(node, queue_id)
        if session.queue.is_withheld:
            await session.queue.until_available()
            # If another node leads now, this waits for the queue, which leaves the asking node time
            # to hear of the new leader.
            if await self._asked(node, queue_id) is not session:
                raise NotFound(f"node '{node}' has begun anew, or another node leads {queue_id}")
        return session

    # Queues that become known, and that are deleted

    def _await(self, queue_id: int) -> _AwaitedQueue:
        awaited = self._awaited.get(queue_id)
        if awaited is None:
            timer = self._node.clock.call_later(WAIT_FOR_QUEUE_S, lambda: self._give_up(queue_id))
            awaited = self._awaited[queue_id] = _AwaitedQueue(timer)
        return awaited

    def _queue_here(self, queue: LocalQueue) -> None:
        awaited = self._awaited.pop(queue.queue_id, None)
        if awaited is None:
            return
        awaited.timer.cancel()
        for waiting in awaited.waiting:
            if isinstance(waiting, _Question):
                waiting.happen()
            else:
                node, kind, payload = waiting
                self._serve(node, self._session(node, queue.queue_id), kind, payload)

    def _give_up(self, queue_id: int) -> None:
        awaited = self._awaited.pop(queue_id)
        for waiting in awaited.waiting:
            if isinstance(waiting, _Question):
                waiting.happen()
                continue
            node, kind, payload = waiting
            if kind is PostKind.PUBLISH:
                carried = self._unpacker.messages(payload, heads.PUBLISH.size)
                numbers = [number for some in carried for number in some.numbers]
                report = PublishedReport(max(numbers, default=0), numbers)
                self._post.send(
                    node, PostKind.PUBLISHED, heads.QUEUE.pack(queue_id), pack_report(report)
                )

    def _queue_gone(self, queue: LocalQueue) -> None:
        """End the sessions of a deleted queue; their nodes learn so from the definitions."""
        self._held.pop(queue.queue_id, None)
        for sessions in self._sessions.values():
            session = sessions.pop(queue.queue_id, None)
            if session is not None:
                self._to_flush.pop(session, None)
                session.let_go()

    # Sessions

    def _held_afar(self, queue: LocalQueue) -> Iterator[HeldAfar]:
        for node, sessions in self._sessions.items():
            session = sessions.get(queue.queue_id)
            if session is not None:
                yield HeldAfar(node, session.unacked)

    def _session(self, node: str, queue_id: int) -> RemoteClient:
        sessions = self._sessions.setdefault(node, {})
        session = sessions.get(queue_id)
        if session is None:
            queue = self._node.local_queues[queue_id]
            origin = self._origin(node)
            effects = Effects(
                flush_soon=lambda session: self._flush_soon(session, node),
                deliver=lambda head, parts: self._deliver(node, head, parts),
                tell_cancelled=lambda head: self._tell_cancelled(node, head),
                note_refused=lambda number: self._note_refused(queue_id, origin, number),
            )
            session = sessions[queue_id] = RemoteClient(
                queue, effects, self._delivery_numbers, node
            )
            session.set_congested(node in self._congested)
        return session

    def _note_refused(self, queue_id: int, origin: str, number: int) -> None:
        if queue_id in self._node.local_queues:
            self._mirroring.from_afar.note_refused(queue_id, origin, number)

    def _deliver(self, node: str, head: bytes, parts: list[bytes]) -> None:
        self._post.send(node, PostKind.DELIVER, head, *parts)

    def _tell_cancelled(self, node: str, head: bytes) -> None:
        self._post.send(node, PostKind.CANCELLED, head)

    def _flush_soon(self, session: RemoteClient, node: str) -> None:
        if not self._to_flush:
            self._node.clock.call_soon(self._flush)
        self._to_flush[session] = node

    def _flush(self) -> None:
        to_flush, self._to_flush = self._to_flush, {}
        for session, node in to_flush.items():
            session.flush()
            is_mirrored = self._mirroring.led(session.queue.queue_id) is not None
            when_safe = partial(self._mirroring.when_mirrors_have_all, session.queue)
            session.await_mirrors(when_safe if is_mirrored else None)
            report = session.report()
            if report is not None:
                head = heads.QUEUE.pack(session.queue.queue_id)
                self._post.send(node, PostKind.PUBLISHED, head, pack_report(report))

    def _link_congested(self, node: str, congested: bool) -> None:
        if congested:
            self._congested.add(node)
        else:
            self._congested.discard(node)
        for session in list(self._sessions.get(node, {}).values()):
            session.set_congested(congested)

    def _down(self, node: str) -> None:
        self._congested.discard(node)
        for awaited in self._awaited.values():
            waiting, awaited.waiting = awaited.waiting, []
            for one in waiting:
                if (one.node if isinstance(one, _Question) else one[0]) != node:
                    awaited.waiting.append(one)
                elif isinstance(one, _Question):
                    one.drop()
        for queue_id in list(self._sessions.get(node, ())):
            self._end_session(node, queue_id)

    def _end_session(self, node: str, queue_id: int) -> None:
        session = self._sessions[node].pop(queue_id, None)
        if session is not None:
            held = self._held.get(queue_id)
            if held is not None:
                # The node sends its publishes again: drop those that are here.
                held[:] = [one for one in held if one[0] != node]
            self._to_flush.pop(session, None)
            session.end()


_SERVED = (
    PostKind.PUBLISH,
    PostKind.HEARD,
    PostKind.SETTLE,
    PostKind.CANCEL,
    PostKind.CONSUMER_STATE,
)
