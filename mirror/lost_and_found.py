"""Puts what only a superseded leader has into the queue `lost+found` of its virtual host.

A leader that was cut off took messages that the next one never got; a mirror that was not in sync
leads, where the policy allows that, without much of what the one before had. When the former leader
is back it asks the next one up to where that has its messages, and keeps the others where people
find them, rather than let them go with its copy. They can be sent on from there, by hand or with a
shovel, once somebody has seen whether they are still wanted.

Not kept is what comes anyway: the nodes of remote publishers send again what was not answered, and
who asked for confirms has been refused them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from warren.core.errors import BrokerError, NotFound
from warren.core.field import Field, longstr
from warren.core.log_line import log_event
from warren.core.message import Envelope, Message
from warren.core.ports import Clock, ContentCodec, Key
from warren.core.queue import Queue
from warren.core.settlement import PENDING, REJECTED
from warren.core.waiting import Event, decided, run
from warren.mirror.calls import Calls
from warren.mirror.former_copy import FormerCopy
from warren.mirror.queue_definitions import QueueDefinitions
from warren.mirror.renumbering import Renumbering, Step

if TYPE_CHECKING:
    from warren.core.node import Node

log = logging.getLogger("warren.queue")

LOST_AND_FOUND: Final = "lost+found"

HEADER: Final = "x-lost-and-found"
"""A table: from which queue and node a message is, when it was put there, and its `expiration`."""

COUNT_MAX = 128
BYTES_MAX = 64 << 10
"""What is read and published at a time: less than a millisecond of work."""

PAUSE_S = 0.003
AGAIN_S = 1.0
"""How long it takes to try again what was not possible."""


class _Search:
    """Of a former copy, which goes on where it was when something was not possible."""

    def __init__(self, key: Key, queue_id: int, former: FormerCopy) -> None:
        self.key = key
        self.queue_id = queue_id
        self.former = former
        # Levels with positions that nobody else has; None before that is known.
        self.runs: deque[tuple[int, int, int]] | None = None
        self.kept = 0


class LostAndFound:
    """Of one node. `renumbering_of` says of a queue in which epoch this node leads it and what it
    knows of the ones before, or None; `searched` is told of copies that have nothing any more that
    others lack."""

    def __init__(
        self,
        name: str,
        calls: Calls,
        clock: Clock,
        renumbering_of: Callable[[int], tuple[int, Renumbering] | None],
        definitions: QueueDefinitions,
        searched: Callable[[FormerCopy], None],
    ) -> None:
        self._name = name
        self._calls = calls
        self._clock = clock
        self._renumbering_of = renumbering_of
        self._definitions = definitions
        self._searched = searched
        self._node: Node

    def attach(self, node: Node) -> None:
        """Answer the questions of other nodes, and publish at this one."""
        self._node = node
        self._calls.serve("mirror.successor", self._asked_for_successor)

    def search(self, key: Key, queue_id: int, former: FormerCopy) -> None:
        """Keep what only this copy has, however long it takes to find out what that is."""
        self._go_on(_Search(key, queue_id, former))

    def _go_on(self, search: _Search) -> None:
        def finish(result: Callable[[], None]) -> None:
            try:
                result()
            except BrokerError:
                # The next leader cannot be reached, or does not know yet that it leads.
                self._clock.call_later(AGAIN_S, lambda: self._go_on(search))
            else:
                self._searched(search.former)

        run(self._find(search), finish)

    async def _find(self, search: _Search) -> None:
        if search.runs is None:
            search.runs = deque(await self._runs(search))
        former, runs = search.former, search.runs
        _, vhost, name = search.key
        while runs and self._is_there(search):
            number, start, end = runs[0]
            peeked = former.levels[number].peek(start, COUNT_MAX, BYTES_MAX)
            messages = [m for m in peeked.messages if m.position < end]
            await self._keep(search, [self._found(message, name) for message in messages])
            search.kept += len(messages)
            if peeked.next_position < end:
                runs[0] = (number, peeked.next_position, end)
            else:
                runs.popleft()
            await self._pause(PAUSE_S)
        if search.kept:
            log_event(
                log,
                logging.WARNING,
                "superseded_tail_kept",
                queue=name,
                vhost=vhost,
                messages=search.kept,
                where=LOST_AND_FOUND,
            )

    def _is_there(self, search: _Search) -> bool:
        """Whether the queue is not deleted."""
        return self._definitions.record_of(search.key, search.queue_id) is not None

    async def _runs(self, search: _Search) -> list[tuple[int, int, int]]:
        """What the next leader never got."""
        former = search.former
        record = self._definitions.record_of(search.key, search.queue_id)
        if record is None:
            return []
        if record.leader == self._name:
            step = self._successor(search.queue_id, former.epoch)
        else:
            told = await self._calls.ask(
                record.leader, "mirror.successor", search.queue_id, former.epoch
            )
            step = None if told is None else Step(*told)
        if step is None or len(step.tails) != len(former.levels):
            if former.may_have_more:
                _, vhost, name = search.key
                log_event(log, logging.INFO, "superseded_tail_unknown", queue=name, vhost=vhost)
            return []
        return [
            (number, start, end)
            for number in range(len(former.levels))
            for start, end in former.only_here(step, number)
        ]

    async def _pause(self, seconds: float) -> None:
        over = Event()
        self._clock.call_later(seconds, over.happen)
        await over

    # The next leader

    async def _asked_for_successor(self, _node: str, queue_id: int, epoch: int) -> Step | None:
        return self._successor(queue_id, epoch)

    def _successor(self, queue_id: int, epoch: int) -> Step | None:
        """How whoever led the queue in this epoch was succeeded; None if nobody knows.

        Raises `NotFound` to be asked again.
        """
        led_in, renumbering = self._renumbering_of(queue_id) or (-1, None)
        if renumbering is None or led_in <= epoch:
            raise NotFound(f"node '{self._name}' does not lead queue {queue_id} yet")
        return renumbering.next_after(epoch)

    # The queue

    async def _keep(self, search: _Search, found: list[tuple[Envelope, bytes]]) -> None:
        """Publish messages, and return when they are safe."""
        while found:
            lost_and_found = await self._declared(search)
            if lost_and_found is None:
                return
            answers = _Answers(len(found))
            for number, (envelope, body) in enumerate(found):
                answer = lost_and_found.publish(envelope, body, answers, number)
                if answer is REJECTED:
                    answers.refuse(number)
                elif answer is not PENDING:
                    answers.settle(number)
            await answers.are_all
            found = [found[number] for number in answers.refused]
            if found:
                await self._pause(AGAIN_S)

    async def _declared(self, search: _Search) -> Queue | None:
        """The queue, which may have to be declared; None when nobody wants it any more."""
        _, vhost, _ = search.key
        while self._is_there(search):
            virtual_host = self._node.vhosts.get(vhost)
            if virtual_host is None:
                return None
            if LOST_AND_FOUND in virtual_host.queues:
                return virtual_host.queues[LOST_AND_FOUND]
            # Another node may be faster.
            await decided(
                virtual_host.declare_queue(
                    LOST_AND_FOUND,
                    durable=True,
                    exclusive_owner=None,
                    auto_delete=False,
                    arguments={},
                )
            )
        return None

    def _found(self, message: Message, queue: str) -> tuple[Envelope, bytes]:
        """The message with where it comes from among its headers, and never to expire."""
        codec: ContentCodec = self._node.codec
        envelope = message.envelope
        headers = codec.headers(envelope.header)
        if HEADER in headers:
            # It has been found before; where it was first is what counts.
            return envelope, message.body
        origin = {
            "queue": longstr(queue),
            "node": longstr(self._name),
            "time": Field("T", int(self._clock.wall_time())),
        }
        expiration = codec.property_text(envelope.header, "expiration")
        if expiration is not None:
            origin["original-expiration"] = Field("S", expiration)
        headers[HEADER] = Field("F", origin)
        found = Envelope(
            envelope.exchange,
            envelope.routing_key,
            codec.for_dead_letter(envelope.header, headers),
            envelope.persistent,
            envelope.priority,
            None,
            envelope.copies,
        )
        return found, message.body


class _Answers:
    """`PublishConfirms` of so many publishes, numbered from 0."""

    def __init__(self, count: int) -> None:
        self.are_all = Event()
        self.refused: list[int] = []
        self._open = count

    def settle(self, publish_seq: int) -> None:
        self._open -= 1
        if not self._open:
            self.are_all.happen()

    def refuse(self, publish_seq: int) -> None:
        self.refused.append(publish_seq)
        self.settle(publish_seq)
