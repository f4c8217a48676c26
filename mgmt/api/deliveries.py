"""What the queues of this node know about deliveries, for programs that read its storage.

Such a program knows positions only. For them it is told which are unacknowledged, and below which
position a consumer may have had the messages: after a stop in order, those come as redelivered.

There may be millions of unacknowledged messages, and no index by queue. So all clients are gone
through once, in slices. A message may be settled or delivered meanwhile: it is as it was at one
moment during the request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from warren.core.definitions.records import QueueRecord
from warren.core.messages.message import NO_HOLDER, HeldQueue, Message
from warren.core.node import ClientChannel, Node
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.stream_queue import StreamingQueue
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.http.slices import Breather, chunks
from warren.mgmt.waiting import reached
from warren.mirror.replication.copies.copies_here import CopiesHere
from warren.mirror.replication.copies.copy_here import CopyHere

BUCKET_BITS: Final = 12
"""Positions are sorted in buckets of 4096 at most, which takes less than a slice."""

MESSAGES_AT_ONCE: Final = 512
"""Messages that are noted in less than a slice."""

RANGES_MAX: Final = 1000
"""The most ranges in one row of the answer, which is encoded at once."""

QUEUES_MAX_BYTES: Final = 8 << 20
"""Octets of the largest request: it may name many queues."""

Range = tuple[int, int]


async def deliveries(request: ApiRequest) -> Any:
    """Which positions of the durable queues that this node leads, or mirrors, are unacknowledged,
    and below which position a consumer may have had a message.

    Each of `levels` has ranges of positions, end exclusive, and the id that the storage has for the
    queue; each level of a queue with priorities has an id of its own, and a level with many ranges
    has several rows. A level without a row has neither unacknowledged nor redelivered messages.

    The body may have `queue_ids`, a list of ids of queues as hexadecimal numbers: then only these
    are in the answer, and `elsewhere` has those of which this node does not know it.

    Of a queue that this node mirrors it is told what the leader has told so far, which is some
    hundredths of a second old; and a consumer may have had what the leader has announced that it
    may hand out. Mirrors of quorum queues do not know which messages are unacknowledged.

    Messages that were acknowledged before the request are removed from the storage before the
    answer, so a program that reads the storage after it does not find them there.
    """
    wanted = await _queue_ids(await request.body())
    cluster = request.managed.cluster
    survey = DeliverySurvey(request.node, None if cluster is None else cluster.mirroring.copies)
    await survey.ask_for(wanted)
    rows = await survey.rows()
    storage = request.managed.storage
    if storage is not None:
        await reached(storage.journal.removals_written())
    elsewhere = [] if wanted is None else sorted(wanted - survey.known)
    return {
        "levels": chunks(rows),
        "elsewhere": [f"{queue_id:016x}" for queue_id in elsewhere],
    }


async def _queue_ids(body: dict[str, Any]) -> set[int] | None:
    given = body.get("queue_ids")
    if given is None:
        return None
    queue_ids: set[int] = set()
    try:
        async for chunk in chunks(given):
            queue_ids.update([int(one, 16) for one in chunk])
    except (TypeError, ValueError) as error:
        raise BadRequest("queue_ids should be a list of hexadecimal numbers") from error
    return queue_ids


class Positions:
    """Positions that come in any order, and some of them twice."""

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}

    def add(self, position: int) -> None:
        bucket = self._buckets.get(position >> BUCKET_BITS)
        if bucket is None:
            self._buckets[position >> BUCKET_BITS] = [position]
        else:
            bucket.append(position)

    async def ranges(self, breather: Breather) -> list[Range]:
        """The ranges of positions, in order, ends excluded."""
        found: list[Range] = []
        start = end = -1
        for number in sorted(self._buckets):
            await breather.breathe()
            for position in sorted(set(self._buckets[number])):
                if position != end:
                    if end > start:
                        found.append((start, end))
                    start = position
                end = position + 1
        if end > start:
            found.append((start, end))
        return found


class AskedQueue(NamedTuple):
    """A queue with its id in the storage, and the unacknowledged positions of each level."""

    queue: LocalQueue
    storage_id: int
    unacked: list[Positions]

    def note(self, message: Message) -> None:
        level = min(message.envelope.priority, len(self.unacked) - 1)
        self.unacked[level].add(message.position)


class DeliverySurvey:
    """Collects what the queues of a node know about deliveries."""

    def __init__(self, node: Node, copies: CopiesHere | None = None) -> None:
        """`copies` are what the node has of queues that other nodes lead."""
        self._node = node
        self._copies = copies
        self._asked: dict[HeldQueue, AskedQueue] = {}
        self._asked_copies: list[CopyHere] = []
        self._breather = Breather()
        self.known: set[int] = set()
        """The ids of the queues asked for whose deliveries are known here."""

    async def ask_for(self, wanted: set[int] | None) -> None:
        """Find the queues with the ids that are `wanted`; None is for all.

        Messages of streams and of delay queues are left out: what a reader of a stream got is still
        in the stream, and no consumer gets messages from a delay queue.
        """
        await self._breather.breathe()
        for vhost in list(self._node.vhosts.values()):
            for queue in list(vhost.queues.values()):
                await self._breather.breathe()
                if not isinstance(queue, LocalQueue) or not queue.durable or queue.deleted:
                    continue
                storage_id = self._storage_id(queue)
                if wanted is None or storage_id in wanted:
                    self.known.add(storage_id)
                    if not isinstance(queue, StreamingQueue) and queue.settings.delays is None:
                        unacked = [Positions() for _ in queue.levels]
                        self._asked[queue] = AskedQueue(queue, storage_id, unacked)
        for copy in self._copies or ():
            await self._breather.breathe()
            if wanted is None or copy.storage_id in wanted:
                self._asked_copies.append(copy)

    def _storage_id(self, queue: LocalQueue) -> int:
        stored = self._node.metadata.get(queue.key)
        if stored is None or not isinstance(stored.record, QueueRecord):
            return queue.queue_id
        return stored.record.storage_id(self._node.name)

    async def rows(self) -> list[dict[str, Any]]:
        """The rows of the levels that have messages.

        A message that leaves its channel and is not ready then comes to the queue itself: it waits,
        or is dead and not buried yet. So queues are looked at after channels.
        """
        for channel in await self._channels():
            await self._note(channel.unsettled())
        rows: list[dict[str, Any]] = []
        for asked in self._asked.values():
            await self._breather.breathe()
            queue = asked.queue
            if queue.deleted:
                # Another node may lead it by now.
                self.known.discard(asked.storage_id)
                continue
            held = self._held_by(queue)
            if not (held or queue.unacked or len(queue)):
                continue
            # This is after all messages were looked up: each that a client has is below.
            below = [level.delivered_below for level in queue.levels]
            for chunk in _slices(held):
                await self._breather.breathe()
                for message in chunk:
                    asked.note(message)
            for level, unacked in enumerate(asked.unacked):
                ranges = await unacked.ranges(self._breather)
                rows += _rows(asked.storage_id + level, below[level], ranges)
        for copy in self._asked_copies:
            rows += await self._rows_of_copy(copy)
        return rows

    async def _rows_of_copy(self, copy: CopyHere) -> list[dict[str, Any]]:
        """The rows of a queue that this node mirrors."""
        await self._breather.breathe()
        if self._copies is None or not self._copies.is_here(copy) or not copy.follows:
            return []
        levels = copy.mirror.levels
        below = [level.delivered_below for level in levels]
        told = [level.unacked() if level.hands_out else [] for level in levels]
        unacked = [messages for messages in told if messages is not None]
        if len(unacked) < len(levels):
            return []
        self.known.add(copy.storage_id)
        rows: list[dict[str, Any]] = []
        for number, messages in enumerate(unacked):
            if not levels[number].hands_out or not (messages or levels[number].backing.length):
                continue
            positions = Positions()
            for chunk in _slices(messages):
                await self._breather.breathe()
                for message in chunk:
                    positions.add(message.position)
            ranges = await positions.ranges(self._breather)
            rows += _rows(copy.storage_id + number, below[number], ranges)
        return rows

    async def _channels(self) -> Collection[ClientChannel]:
        """All channels. One that ends meanwhile gives its messages back: these are looked up after
        those of the clients."""
        channels: dict[ClientChannel, None] = {}
        for client in list(self._node.clients):
            await self._breather.breathe()
            channels.update(dict.fromkeys(client.holdings()))
        channels.update(self._node.giving_back)
        return channels

    async def _note(self, messages: Sequence[Message]) -> None:
        """Note the messages that a channel has got, those of queues led elsewhere excepted."""
        by_queue = self._asked
        for chunk in _slices(messages):
            await self._breather.breathe()
            for message in chunk:
                holder = message.holder
                # A message that was settled meanwhile may have no holder any more.
                asked = None if holder is NO_HOLDER else by_queue.get(holder.queue)
                if asked is not None:
                    asked.note(message)

    def _held_by(self, queue: LocalQueue) -> list[Message]:
        """Pending messages that no channel of this node has."""
        held = list(self._node.held_by_queue(queue))
        for afar in self._node.held_afar(queue):
            held += afar.messages.values()
        return held


def _slices(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    for first in range(0, len(messages), MESSAGES_AT_ONCE):
        yield messages[first : first + MESSAGES_AT_ONCE]


def _rows(level: int, below: int, ranges: list[Range]) -> Iterator[dict[str, Any]]:
    for first in range(0, max(len(ranges), 1), RANGES_MAX):
        yield {
            "queue_id": f"{level:016x}",
            "redelivered_below": below,
            "unacked": ranges[first : first + RANGES_MAX],
        }
