"""Puts messages that only a superseded leader has into the queue `lost+found` of the virtual host.

A leader that was cut off has taken messages that the next leader never got. If the policy lets a
mirror lead that was not in sync, that mirror lacks many messages of the former leader. When the
former leader is back, it asks the present one which messages are lacking, and puts these into
`lost+found` instead of deleting them with its copy. A person decides whether they are still wanted,
and sends them on from there, by hand or with a shovel.

Other copies that were once whole do the same: that of an earlier leader, or of a mirror that was in
sync. But they may have many messages that were consumed since, so they wait `LATE_S` for the last
leader that had everything, unless all nodes that had copies are up or forgotten. The present leader
lets one node search at a time, and knows up to which position everything has been found.

Messages that arrive in another way are not put there: other nodes send publishes without an answer
again, and publishes with confirms were refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from warren.core.backing.windowed_queue import is_id
from warren.core.definitions.records import QueueRecord
from warren.core.errors import BrokerError, NotFound
from warren.core.field import Field, longstr
from warren.core.log_line import log_event
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms
from warren.core.ports import Clock, ContentCodec, Key
from warren.core.queues.queue import Queue
from warren.core.scheduling.waiting import Event, decided, run
from warren.mirror.messages.calls import Calls
from warren.mirror.replication.copies.former_copy import FormerCopy
from warren.mirror.replication.definition.former_nodes import nodes_with_former_copies
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.definition.promotion import leader_is_lost
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.levels.renumbering import NO_LIMIT, LeaderChange, Renumbering

if TYPE_CHECKING:
    from warren.core.node import Node

log = logging.getLogger("warren.queue")

LOST_AND_FOUND: Final = "lost+found"

HEADER: Final = "x-lost-and-found"
"""A table: the queue and the node of a message, when it was put there, and its `expiration`."""

WHAT_IS_LACKING = "mirror.what_is_lacking"
"""A node asks the leader which messages of its former copy the queue lacks."""

COUNT_MAX = 128
BYTES_MAX = 64 << 10
"""Messages and octets that are read and published at a time: less than a millisecond of work."""

PAUSE_S = 0.003
AGAIN_S = 1.0
"""How long a search waits before it tries a step again that has failed."""

LATE_S = 600.0
"""How long a copy that may be out of date waits for a better one: a machine may have to restart."""

WAIT_S = 10.0
"""How long such a copy waits before it asks again."""


class Lacking(NamedTuple):
    """The messages of a former copy that a queue lacks: the leader which began with `step` never
    got them, and they are behind `found_upto`.

    `is_next`: that leader came right after the epoch of the copy. `wait`: a better copy may come.
    `reached` is that of the `Gap`.
    """

    step: LeaderChange
    found_upto: Sequence[int]
    is_next: bool
    wait: bool
    reached: Sequence[int] = ()


def _limits(lacking: Lacking, *, led: bool) -> Sequence[int]:
    """Per level, the position up to which messages of a copy count, in the positions of the leader
    that may lack them.

    A next leader that was in sync has what was confirmed: it may lack the tail of a leader, not of
    a mirror. One that was not in sync may lack either. If other leaders were in between, what they
    had not reached was not confirmed.
    """
    step = lacking.step
    if lacking.is_next:
        return [NO_LIMIT] * len(step.tails) if led or step.firsts else step.tails
    return lacking.reached or step.tails


class _Found:
    """How much has been found of what a leader lacked when it took over; the node `by` searches for
    more.

    `upto`, in positions of that leader: by copies with all messages (False), and by copies with
    safe ones only (True).
    """

    def __init__(self) -> None:
        self.by = ""
        self.upto: dict[bool, Sequence[int]] = {}


class _Search:
    """The search of a former copy. After a step that has failed it goes on where it was."""

    def __init__(self, key: Key, queue_id: int, former: FormerCopy) -> None:
        self.key = key
        self.queue_id = queue_id
        self.former = former
        # The epoch of the leader that was asked what it lacks.
        self.epoch = former.epoch
        # Level, first position and end of each run that no other copy has; None before they are
        # known.
        self.runs: deque[tuple[int, int, int]] | None = None
        self.kept = 0
        self.late_at = 0.0
        # The leader to tell, the epoch in question, and up to where this copy has been searched.
        self.tell: tuple[str, int, list[int]] | None = None


class LostAndFound:
    """The searches of one node. `renumbering_of` says of a queue in which epoch this node leads it
    and what it knows of the ones before; None if it does not lead it. `searched` is called with
    copies that have nothing any more that the leader of an epoch lacks."""

    def __init__(
        self,
        nodes: Nodes,
        calls: Calls,
        clock: Clock,
        renumbering_of: Callable[[int], tuple[int, Renumbering] | None],
        definitions: QueueDefinitions,
        searched: Callable[[FormerCopy, int], None],
    ) -> None:
        self._nodes = nodes
        self._calls = calls
        self._clock = clock
        self._renumbering_of = renumbering_of
        self._definitions = definitions
        self._searched = searched
        # How much was found, by queue that is led here, and by the epoch of the leader that lacked
        # it.
        self._found_of: dict[int, dict[int, _Found]] = {}
        self._node: Node

    def attach(self, node: Node) -> None:
        """Answer the questions of other nodes, and publish at this one."""
        self._node = node
        self._calls.serve(WHAT_IS_LACKING, self._asked_for_lacking)
        self._calls.serve("mirror.lacking", self._asked_by_an_earlier_version)
        self._calls.serve("mirror.found", self._told_found)

    def search(self, key: Key, queue_id: int, former: FormerCopy) -> None:
        """Put messages that only this copy has into `lost+found`, however long the search takes."""
        search = _Search(key, queue_id, former)
        search.late_at = self._clock.now() + LATE_S
        self._go_on(search)

    def forget(self, queue_id: int) -> None:
        """Forget the searches of a queue that this node leads no more."""
        self._found_of.pop(queue_id, None)

    def _go_on(self, search: _Search) -> None:
        def finish(result: Callable[[], None]) -> None:
            try:
                result()
            except BrokerError:
                # The next leader cannot be reached, or does not know yet that it leads.
                self._clock.call_later(AGAIN_S, lambda: self._go_on(search))
            else:
                if search.former.to_be_searched:
                    self._searched(search.former, search.epoch)
                    self._tell_found(search)

        run(self._find(search), finish)

    async def _find(self, search: _Search) -> None:
        if search.runs is None:
            search.runs = deque(await self._runs(search))
        former, runs = search.former, search.runs
        _, vhost, name = search.key
        while runs and self._is_there(search):
            number, start, end = runs[0]
            peeked = former.levels[number].peek(start, COUNT_MAX, BYTES_MAX)
            messages = [
                message
                for message in peeked.messages
                if message.position < end and not is_id(message.envelope)
            ]
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
        """Whether the queue still exists."""
        return self._definitions.record_of(search.key, search.queue_id) is not None

    async def _runs(self, search: _Search) -> list[tuple[int, int, int]]:
        """Return the runs that the next leader never got: level, first position and end."""
        former, waits = search.former, False
        _, vhost, name = search.key
        while former.to_be_searched:
            record = self._definitions.record_of(search.key, search.queue_id)
            if record is None:
                return []
            search.epoch = record.epoch
            lacking, moved = await self._lacking(search, record)
            if lacking is None:
                if former.may_have_more:
                    log_event(log, logging.INFO, "superseded_tail_unknown", queue=name, vhost=vhost)
                return []
            if not lacking.wait:
                break
            if not waits:
                log_event(log, logging.INFO, "better_copy_awaited", queue=name, vhost=vhost)
            waits = True
            await self._pause(WAIT_S)
        else:
            # The queue is led with this copy.
            return []
        step, levels = lacking.step, range(len(former.levels))
        limits = _limits(lacking, led=former.led)
        if step.firsts or step.holes:
            upto = [
                former.end_at(step, number, moved=moved[number], upto=limits[number])
                for number in levels
            ]
            search.tell = (record.leader, step.epoch, upto)
        found_upto: Sequence[int | None] = lacking.found_upto or [None] * len(levels)
        return [
            (number, start, end)
            for number in levels
            for start, end in former.only_here(
                step,
                number,
                moved=moved[number],
                found_upto=found_upto[number],
                upto=limits[number],
            )
        ]

    async def _lacking(
        self, search: _Search, record: QueueRecord
    ) -> tuple[Lacking | None, Sequence[int]]:
        """The leader's answer for the last epoch that both it and this node know of; and how far
        positions have moved since then."""
        former, leader = search.former, record.leader
        is_late = self._clock.now() >= search.late_at or not self._may_come(record)
        for epoch, moved in former.epochs():
            question = (search.queue_id, epoch, former.led, former.safe_only, is_late)
            if leader == self._nodes.name:
                lacking = self._lacking_here(self._nodes.name, *question)
            else:
                told = await self._calls.ask(leader, WHAT_IS_LACKING, *question)
                lacking = None if told is None else Lacking(LeaderChange(*told[0]), *told[1:])
            if lacking is not None and len(lacking.step.tails) == len(former.levels):
                return lacking, moved
        return None, ()

    def _may_come(self, record: QueueRecord) -> bool:
        """Whether a node that is not there may have a better copy: a forgotten one does not come
        back."""
        present = self._nodes.present()
        awaited = [node for node in nodes_with_former_copies(record) if node not in present]
        return bool(awaited) and not leader_is_lost(record.promoted)

    def _tell_found(self, search: _Search) -> None:
        """Tell the leader how far the search was: later copies need not search that again."""
        if search.tell is None:
            return
        leader, epoch, upto = search.tell
        found = (search.queue_id, epoch, upto, search.former.safe_only)
        if leader == self._nodes.name:
            self._was_found(leader, *found)
            return

        def finish(result: Callable[[], None]) -> None:
            # If the leader does not hear of it, messages are found twice rather than not at all.
            with suppress(NotFound):
                result()

        run(self._tell(leader, found), finish)

    async def _tell(self, leader: str, found: tuple[int, int, list[int], bool]) -> None:
        await self._calls.ask(leader, "mirror.found", *found)

    async def _pause(self, seconds: float) -> None:
        over = Event()
        self._clock.call_later(seconds, over.happen)
        await over

    # Questions to the leader

    async def _asked_for_lacking(
        self, node: str, queue_id: int, epoch: int, led: bool, safe_only: bool, is_late: bool
    ) -> tuple[object, ...] | None:
        lacking = self._lacking_here(node, queue_id, epoch, led, safe_only, is_late)
        return None if lacking is None else (lacking.step.plain(), *lacking[1:])

    async def _asked_by_an_earlier_version(
        self, node: str, *question: Any
    ) -> tuple[object, ...] | None:
        """The same, without the values that earlier versions do not expect: `retained` and `holes`
        of the step, and `reached`."""
        lacking = self._lacking_here(node, *question)
        return None if lacking is None else (lacking.step[:4], *lacking[1:-1])

    def _lacking_here(
        self, node: str, queue_id: int, epoch: int, led: bool, safe_only: bool, is_late: bool
    ) -> Lacking | None:
        """Return which messages of this epoch the queue lacks; None if that is not known. The node
        searches for them from now on, unless it is to wait.

        Raises `NotFound` to be asked again.
        """
        led_in, renumbering = self._renumbering_of(queue_id) or (-1, None)
        if renumbering is None or led_in <= epoch:
            raise NotFound(f"node '{self._nodes.name}' does not lead queue {queue_id} yet")
        gap = renumbering.up_to_gap(epoch)
        if gap is None:
            return None
        step, reached = gap
        is_next = not reached
        if not (step.firsts or step.holes):
            return Lacking(step, (), is_next, False)
        found = self._found_of.setdefault(queue_id, {}).setdefault(step.epoch, _Found())
        if found.by not in ("", node) and found.by in self._nodes.present():
            raise NotFound(f"node '{found.by}' searches its copy of queue {queue_id}")
        upto = [there for safe, there in found.upto.items() if safe_only or not safe]
        furthest = [max(level) for level in zip(*upto, strict=True)]
        wait = not (furthest or is_late or (led and is_next))
        if not wait:
            found.by = node
        return Lacking(step, furthest, is_next, wait, reached)

    async def _told_found(
        self, node: str, queue_id: int, epoch: int, upto: list[int], safe_only: bool
    ) -> None:
        self._was_found(node, queue_id, epoch, upto, safe_only)

    def _was_found(
        self, node: str, queue_id: int, epoch: int, upto: list[int], safe_only: bool
    ) -> None:
        found = self._found_of.get(queue_id, {}).get(epoch)
        if found is None:
            return
        before = found.upto.get(safe_only, upto)
        found.upto[safe_only] = [max(level) for level in zip(before, upto, strict=True)]
        if found.by == node:
            found.by = ""

    # The queue `lost+found`

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
        """The queue `lost+found`, declared if there is none; None if the searched queue is gone."""
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
        """The message without its expiry, and with a header that says where it comes from."""
        codec: ContentCodec = self._node.codec
        envelope = message.envelope
        headers = codec.headers(envelope.header)
        if HEADER in headers:
            # The message has been found before; where it came from first is what counts.
            return envelope, message.body
        origin = {
            "queue": longstr(queue),
            "node": longstr(self._nodes.name),
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


class _Answers(PublishConfirms):
    """The answers to `count` publishes, numbered from 0."""

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
