"""Publishes without confirms in histories of clusters, and what is promised of them.

The node of the client keeps what it published to a queue with mirrors until these have it, and
sends it again to the next leader (docs/mirroring.md). So nothing of it is lost while that node
lives; nor is it lost with the node when the leader has answered it; nor what a node led itself
that was stopped in order and has handed the queue over. What clients of a leader published that
died is not promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cluster_checks as checks

from warren.core.definitions.records import QueueRecord
from warren.core.messages.settlement import Settlement
from warren.core.queues.classic_queue import ClassicQueue
from warren.core.queues.moving import Unanswered
from warren.mirror.messages.origin import origin_name
from warren.mirror.remote.publishes_under_way import PublishesUnderWay
from warren.mirror.remote.settling import PublishedReport
from warren.mirror.replication.leading.publishes_from_afar import PublishesFromAfar

if TYPE_CHECKING:
    from cluster_client import Publish, Session
    from cluster_history import History

STOP_S = 0.05
"""What a node that stops got so long before is handed over with the queue."""


class Unconfirmed:
    """The publishes without confirms of one history that must not be lost."""

    def __init__(self, history: History) -> None:
        self._history = history
        # Publishes that no node has read yet.
        self._new: dict[int, tuple[Publish, Session]] = {}
        # When a node read each publish.
        self._taken: dict[int, float] = {}
        # By the node of the client: publishes to queues that it leads, and to those that another
        # node leads. `_safe` has the publishes that the end of that node does not lose.
        self._led: dict[str, dict[int, Publish]] = {}
        self._sent_on: dict[str, dict[int, Publish]] = {}
        self._safe: dict[int, Publish] = {}
        self._stopping: dict[str, float] = {}
        self._when_answered: dict[str, Callable[[], None]] = {}
        # The publishes that a leader has answered, and those that it answered without mirrors.
        self._answered: set[int] = set()
        self._of_one: set[int] = set()

    def published(self, publish: Publish, session: Session) -> None:
        self._new[publish.number] = (publish, session)

    def taken(self, bodies: Iterable[bytes], find_node: Callable[[], str], *, is_led: bool) -> None:
        """Note that a node has got publishes: for a queue that it leads, or for one that another
        node leads. After a change of the leader it may be the other of the two."""
        for number in map(int, bodies):
            publish, session = self._new.pop(number, (None, None))
            if publish is not None and session is not None:
                by_node = self._led if is_led else self._sent_on
                by_node.setdefault(session.node, {})[number] = publish
                self._taken[number] = self._history.now
            elif number in self._taken:
                self._moved(number, find_node(), is_led=is_led)

    def _moved(self, number: int, node: str, *, is_led: bool) -> None:
        before, now = (self._sent_on, self._led) if is_led else (self._led, self._sent_on)
        publish = before.get(node, {}).pop(number, None)
        if publish is not None:
            now.setdefault(node, {})[number] = publish

    def node_of(self, publishes: PublishesUnderWay) -> str:
        cluster = self._history.cluster
        found = [name for name in cluster.nodes if cluster[name].remote_queues is publishes._all]
        return found[0] if found else ""

    def leader_of(self, queue: ClassicQueue) -> str:
        cluster = self._history.cluster
        for name in cluster.nodes:
            if queue in list(cluster[name].node.local_queues):
                return name
        return ""

    def stops(self, node: str) -> None:
        """The node begins to stop in order."""
        self._stopping[node] = self._history.now

    def dies(self, node: str) -> None:
        """Publishes may be lost with the node: those that it keeps, and those to a queue that it
        led and did not hand over."""
        self._when_answered.pop(node, None)
        seen = self._history.seen
        stops_at = self._stopping.pop(node, None)
        for number, publish in self._led.pop(node, {}).items():
            if stops_at is not None and self._is_handed_over(node, publish, stops_at):
                seen["unconfirmed, handed over at an orderly stop"] += 1
                self._safe[number] = publish
        for number, publish in self._sent_on.pop(node, {}).items():
            if number in self._answered:
                self._safe[number] = publish
            else:
                seen["unconfirmed, kept by a node that died"] += 1

    def _is_handed_over(self, node: str, publish: Publish, stops_at: float) -> bool:
        taken_at = self._taken[publish.number]
        if taken_at > stops_at - STOP_S:
            return False
        record = checks.record_of(self._history.cluster, publish.queue)
        is_led_elsewhere = record is not None and record.leader != node
        since = taken_at - checks.KNOWN_S
        moved = self._history.ledger.queues[publish.queue].moved_at if is_led_elsewhere else ()
        # It led all the time until then.
        return [at for at in moved if at >= since] == [at for at in moved if at > stops_at] != []

    def answered(self, bodies: Iterable[bytes]) -> None:
        """The leader has answered these publishes, and their nodes forget them."""
        self._history.ledger.follow()
        since = self._history.now - checks.KNOWN_S
        for number in map(int, bodies):
            publish = self._history.publishes[number]
            queue = self._history.ledger.queues.get(publish.queue)
            self._answered.add(number)
            if queue is None or not queue.record.mirrors or queue.bare_until >= since:
                self._of_one.add(number)
            if queue is not None and publish.received_at is None and not publish.excused:
                self._may_fail(queue.record, number)

    def _may_fail(self, record: QueueRecord, number: int) -> None:
        nodes = {node for node, publishes in self._sent_on.items() if number in publishes}
        # A node with a mirror gets the publish as a mirror before it gets the answer.
        if record.leader in self._when_answered and not nodes & set(record.mirrors):
            self._history.cluster.clock.call_soon(self._when_answered.pop(record.leader))

    def when_answered(self, leader: str, fails: Callable[[], None]) -> None:
        """Have the leader fail when it has answered the next publish."""
        self._when_answered[leader] = fails

    def refused(self, bodies: Iterable[bytes]) -> None:
        """The leader refused these publishes, or is gone and has no mirrors: they are dropped."""
        for number in map(int, bodies):
            for publishes in self._sent_on.values():
                if publishes.pop(number, None) is not None:
                    self._history.seen["unconfirmed, and refused"] += 1

    def unknown(self, queue_id: int, origin: str) -> None:
        """A leader cannot say which publishes of a node it has: what the node keeps is not sent
        again."""
        for node, publishes in self._sent_on.items():
            if origin != origin_name(node, self._history.cluster[node].incarnation):
                continue
            for number, publish in list(publishes.items()):
                queue = self._history.ledger.queues.get(publish.queue)
                is_meant = queue is not None and queue.record.queue_id == queue_id
                if is_meant and number not in self._answered:
                    del publishes[number]
                    self._history.seen["unconfirmed, and the next leader cannot say"] += 1

    def promised(self) -> list[Publish]:
        held = [*self._led.values(), *self._sent_on.values(), self._safe]
        return [publish for some in held for publish in some.values()]

    def lost(self) -> list[Publish]:
        missing = [publish for publish in self.promised() if publish.received_at is None]
        return [publish for publish in missing if not self._may_be_lost(publish)]

    def _may_be_lost(self, publish: Publish) -> bool:
        ledger, operator = self._history.ledger, self._history.operator
        if publish.returned or ledger.may_be_lost(publish) or operator.may_be_lost(publish, ledger):
            return True
        # A leader without mirrors answers what it has in memory, and dies with it.
        losses = ledger.queues[publish.queue].losses
        return publish.number in self._of_one and any(
            loss.at >= publish.published_at for loss in losses
        )


@contextmanager
def watching_unconfirmed(unconfirmed: Unconfirmed) -> Iterator[None]:
    """Have `unconfirmed` hear of what nodes read, and of what they do not send again."""
    add, add_many = PublishesUnderWay.add, PublishesUnderWay.add_many
    publish, publish_many = ClassicQueue.publish, ClassicQueue.publish_many
    settle, received_from = PublishesUnderWay.settle, PublishesFromAfar.received_from

    def watched_add(publishes: PublishesUnderWay, new: Unanswered) -> Unanswered:
        unconfirmed.taken([new.body], lambda: unconfirmed.node_of(publishes), is_led=False)
        return add(publishes, new)

    def watched_add_many(
        publishes: PublishesUnderWay, envelopes: Any, bodies: Sequence[bytes], *more: Any
    ) -> range:
        unconfirmed.taken(bodies, lambda: unconfirmed.node_of(publishes), is_led=False)
        return add_many(publishes, envelopes, bodies, *more)

    def watched_publish(queue: ClassicQueue, envelope: Any, body: bytes, *more: Any) -> Settlement:
        unconfirmed.taken([body], lambda: unconfirmed.leader_of(queue), is_led=True)
        return publish(queue, envelope, body, *more)

    def watched_publish_many(
        queue: ClassicQueue, envelopes: Any, bodies: Sequence[bytes], *more: Any
    ) -> Sequence[Settlement]:
        unconfirmed.taken(bodies, lambda: unconfirmed.leader_of(queue), is_led=True)
        return publish_many(queue, envelopes, bodies, *more)

    def watched_settle(publishes: PublishesUnderWay, report: PublishedReport) -> None:
        refused = frozenset(report.refused)
        upto = [one for one in publishes._unanswered if one.number <= report.upto]
        kept = [one for one in upto if one.confirms is None]
        unconfirmed.refused([one.body for one in kept if one.number in refused])
        unconfirmed.answered([one.body for one in kept if one.number not in refused])
        settle(publishes, report)

    def watched_received(afar: PublishesFromAfar, queue_id: int, origin: str) -> int | None:
        received = received_from(afar, queue_id, origin)
        if received is None:
            unconfirmed.unknown(queue_id, origin)
        return received

    PublishesUnderWay.add = watched_add  # type: ignore[method-assign]
    PublishesUnderWay.add_many = watched_add_many  # type: ignore[method-assign]
    ClassicQueue.publish = watched_publish  # type: ignore[method-assign]
    ClassicQueue.publish_many = watched_publish_many  # type: ignore[method-assign]
    PublishesUnderWay.settle = watched_settle  # type: ignore[method-assign]
    PublishesFromAfar.received_from = watched_received  # type: ignore[method-assign]
    try:
        yield
    finally:
        PublishesUnderWay.add = add  # type: ignore[method-assign]
        PublishesUnderWay.add_many = add_many  # type: ignore[method-assign]
        ClassicQueue.publish = publish  # type: ignore[method-assign]
        ClassicQueue.publish_many = publish_many  # type: ignore[method-assign]
        PublishesUnderWay.settle = settle  # type: ignore[method-assign]
        PublishesFromAfar.received_from = received_from  # type: ignore[method-assign]
