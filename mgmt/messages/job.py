"""One job: moves, copies, replays or deletes the messages of a queue that its plan selects.

A job goes through the queue once, from the oldest message to the last one present at its start. A
message that is to leave is taken out of the queue first, so that no consumer gets it. It is pending
until all its new queues have it safe (`core/messages/succession.py`); its removal is written in a
later batch of the log. So at any moment the message is in the old queue or in the new ones. After a
crash it may be in both, and the one in the old queue counts as redelivered.

A message whose target cannot take it is not taken out: it stays, and the job counts the reason.

A job that copies leaves nothing behind by which a second run could tell what is copied. So it
records how far it is (`progress.py`), and goes on there when it is started again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

from warren.core.access.access_control import User
from warren.core.errors import BrokerError, PreconditionFailed
from warren.core.messages.message import Message
from warren.core.messages.message_filter import MessageState, Subject, Test, parse_filter
from warren.core.messages.stock import Stock
from warren.core.messages.succession import Succession
from warren.core.node import Node
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.retention import Retention
from warren.core.vhosts.burials import HEADER_OCTETS_PER_US
from warren.mgmt.messages.looking import FoundMessages, QueuePlace, Search, look, parse_place
from warren.mgmt.messages.plan import Action, JobPlan, seconds
from warren.mgmt.messages.progress import AT_THE_BEGINNING, Progress, epoch_of
from warren.mgmt.messages.sources import replayed_from, source_of, why_no_replay
from warren.mgmt.messages.targets import Find, MessageTarget, Stays, targets
from warren.mgmt.waiting import reached, through

BATCH = 50
"""Messages taken out at once, in about a millisecond."""

UNDER_WAY_MAX = 500
UNDER_WAY_BYTES = 4 << 20
"""The most messages, and octets, under way at a time. Clients find them in no queue meanwhile."""

SAMPLES = 10
REASONS_MAX = 20
"""Messages that a dry run shows, and reasons that are counted apart from `other reasons`."""

RESERVED = 1000
"""A job with a limit records up to so many messages before it handles them. When it is started
again after a crash, it may end so many short of its limit."""

RECORDED = 1000
"""A job that copies records how far it is after so many messages that it has looked at."""

NOT_READY = "it is not ready: it is unacknowledged, or is not in the queue any more"
NOT_KEPT = "it is not there: it was removed by a limit of age or size, or has never been there"

ALARM_S = 0.5
"""Time between two checks whether an alarm is over. Publishers are blocked meanwhile, too."""

STOP_S = 5.0
"""How long a stopped job waits for messages under way to a queue that takes nothing."""


class JobState(StrEnum):
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


NEXT = {
    JobState.RUNNING: {
        JobState.STOPPING,
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.INTERRUPTED,
    },
    JobState.STOPPING: {JobState.STOPPED, JobState.FAILED, JobState.INTERRUPTED},
}
"""The states that may follow each state; states that are not listed are final."""


COPYING = (Action.COPY, Action.REPLAY)
"""Actions that leave messages in their queue."""

Record = Callable[[int], Awaitable[None]]
"""Records how far the job is, in case it is started again. The number is how many messages count as
done then."""


class Job:
    """A job, and how far it is.

    `done` counts the messages that have reached their target or were deleted, those before an
    interruption included. `left` counts the messages that stay, by reason. `samples` are the first
    messages that a dry run finds.
    """

    def __init__(
        self,
        node: Node,
        queue: LocalQueue,
        plan: JobPlan,
        user: User | None,
        *,
        before: Progress = AT_THE_BEGINNING,
        record: Record | None = None,
    ) -> None:
        """`before` is how far the job was, if it is started again."""
        self.plan = plan
        self.queue = queue
        self.state = JobState.RUNNING
        self.reason = ""
        self.looked_at = 0
        self.matched = 0
        self.done = self._done_before = self._reserved = before.done
        self.left: Counter[str] = Counter()
        self.samples: list[FoundMessages] = []
        self.under_way = 0
        self._record = record
        self._before = before
        self._node = node
        self._vhost = node.vhosts[queue.vhost_name]
        self._find: Find = targets(node, queue, plan, user)
        self._succession = Succession(node.clock, node.turns, self._vhost.queues.get)
        self._bytes_under_way = 0
        self._taken: dict[Message, None] = {}
        self.source = source_of(queue, plan)
        self._ends = [level.next_position for level in self.source.levels]
        self._positions, self._start = self._selected()
        self._epoch = epoch_of(node, queue)
        # The places of copies under way, in the order of the queue, and how many messages had been
        # looked at when the job was recorded last.
        self._copying: dict[QueuePlace, None] = {}
        self._recorded_at = 0
        self._places_met: set[QueuePlace] = set()
        self._go_on_from(before)
        self._next = self._start
        self._stop_wanted = asyncio.Event()
        self._interrupted = False
        self._less_under_way = asyncio.Event()
        self._began_s = 0.0
        self._reached_all = False

    @property
    def progress(self) -> Progress:
        """How far the job is: every message before the place `next` has been dealt with."""
        return Progress(
            done=self.done,
            queue_id=self.queue.queue_id,
            epoch=self._epoch,
            next=next(iter(self._copying), self._next),
            ends=self._ends,
        )

    @property
    def is_over(self) -> bool:
        return self.state not in NEXT

    def stop(self, *, interrupted: bool = False) -> None:
        """End soon; messages under way arrive first. An interrupted job may be started again."""
        self._interrupted |= interrupted
        if self.state is JobState.RUNNING:
            self._become(JobState.STOPPING)
        self._stop_wanted.set()

    def fail(self, reason: str) -> None:
        """End the job after an unexpected error."""
        self._give_up()
        self.reason = reason
        self._become(JobState.FAILED)

    async def run(self) -> None:
        """Do the whole job. Returns when it is over."""
        self._began_s = asyncio.get_running_loop().time()
        end = JobState.COMPLETED
        try:
            if self.plan.action is Action.REPLAY:
                await self._find_range()
                self._go_on_from(self._before)
            await self._go_through()
        except BrokerError as error:
            end, self.reason = JobState.FAILED, error.text
        await self._all_arrived()
        if self.source.deleted and end is not JobState.FAILED and not self._reached_all:
            end, self.reason = self._without_queue()
        if self.state is JobState.STOPPING and end is JobState.COMPLETED:
            end = JobState.INTERRUPTED if self._interrupted else JobState.STOPPED
        self._become(end)

    def _become(self, state: JobState) -> None:
        assert state in NEXT[self.state], (self.state, state)
        self.state = state

    def _without_queue(self) -> tuple[JobState, str]:
        if not self.queue.deleted:
            return JobState.FAILED, "the queue retains nothing any more"
        current = self._vhost.queues.get(self.queue.name)
        if current is not None and current.queue_id == self.queue.queue_id:
            return JobState.INTERRUPTED, "the queue has another leader, or other mirrors"
        return JobState.FAILED, "the queue was deleted"

    # Which messages

    def _selected(self) -> tuple[frozenset[QueuePlace] | None, QueuePlace | None]:
        """The places that the plan lists, and the first of them. Sets the ends of levels, too."""
        if self.plan.positions is None:
            return None, None
        levels = len(self._ends)
        places = frozenset([parse_place(text, levels) for text in self.plan.positions])
        for number in range(levels):
            beyond = max([at + 1 for level, at in places if level == number], default=0)
            self._ends[number] = min(self._ends[number], beyond)
        # A job goes through the levels from the highest to the lowest.
        first = min(places, key=lambda place: (-place.level, place.position), default=None)
        return places, first

    async def _find_range(self) -> None:
        """Find where a replay begins and ends. Raises `BrokerError`."""
        source, plan = replayed_from(self.queue), self.plan
        if source is None:
            raise PreconditionFailed(why_no_replay(self.queue))
        if isinstance(source, Retention):
            await through(source.written())
            if plan.positions is None:
                self._ends = [source.log.next_position]
        if plan.first is not None or plan.since is not None:
            first = plan.first or 0
            if plan.since is not None:
                first = await through(source.offset_at(seconds(plan.since)))
            self._start = max(self._start or QueuePlace(0, first), QueuePlace(0, first))
        if plan.last is not None:
            self._ends[0] = min(self._ends[0], plan.last + 1)
        if plan.until is not None:
            beyond = await through(source.offset_at(seconds(plan.until)))
            self._ends[0] = min(self._ends[0], beyond)

    def _go_on_from(self, before: Progress) -> None:
        """Go on where the job was, if positions still mean what they meant then."""
        levels = len(self._ends)
        if before.queue_id != self.queue.queue_id or len(before.ends) != levels:
            # The job was begun on another queue, or by an earlier version.
            return
        if before.epoch != self._epoch and self.plan.action is not Action.REPLAY:
            if not self.queue.is_stream:
                return
        self._ends = [min(ends) for ends in zip(self._ends, before.ends, strict=True)]
        if before.next is None or self.plan.action not in COPYING:
            return
        self._start = start = QueuePlace(*before.next)
        self._places_met = {
            place
            for place in self._positions or ()
            if (-place.level, place.position) < (-start.level, start.position)
        }

    def _test(self) -> Test:
        passes = parse_filter(self.plan.filter)
        places, levels = self._positions, len(self._ends)
        if places is None:
            return passes

        def test(subject: Subject) -> bool:
            message = subject.message
            place = QueuePlace(min(message.envelope.priority, levels - 1), message.position)
            if place not in places:
                return False
            self._places_met.add(place)
            return passes(subject)

        return test

    async def _go_through(self) -> None:
        """Look at each message once and carry out the plan. Raises `BrokerError`."""
        if self._positions is not None and not self._positions:
            self._reached_all = True
            return
        test, start = self._test(), self._start
        self._next = start
        while not self._stop_wanted.is_set() and not self.source.deleted:
            count = self._batch()
            if not count:
                break
            await self._wait_for_alarms()
            search = Search(test, count, start, ends=self._ends, unacked=False)
            looked = await look(self._node, self.source, search)
            self.looked_at += looked.looked_at
            self.matched += len(looked.found)
            if self.plan.dry_run:
                await self._note(looked.found)
            else:
                if not await self._reserved_for(len(looked.found)):
                    break
                await self._handle(looked.found)
            start = looked.next
            if start is None:
                if not self.source.deleted:
                    self._next = QueuePlace(0, self._ends[0])
                self._note_missing()
                break
            self._next = start
            if not await self._recorded():
                break
            await self._keep_to_rate()
            await self._wait_for_room()
        self._reached_all = not self._stop_wanted.is_set() and not self.source.deleted

    def _note_missing(self) -> None:
        """Count the messages that the plan lists and the job did not meet: they stay, too."""
        missing = len(self._positions or ()) - len(self._places_met)
        if missing:
            is_kept = self.plan.action is Action.REPLAY or self.queue.is_stream
            self.left[NOT_KEPT if is_kept else NOT_READY] += missing

    async def _reserved_for(self, count: int) -> bool:
        """Record messages before they are handled, so that the limit holds even after a crash.

        False if the job is to stop first: the cluster's store may be lost for a long time.
        """
        wanted = self.done + self.under_way + count
        if self._record is None or self.plan.limit is None or wanted <= self._reserved:
            return True
        self._reserved = min(self.plan.limit, wanted + RESERVED)
        return await self._written(self._record(self._reserved))

    async def _recorded(self) -> bool:
        """Record now and then how far a job is that copies. False if the job is to stop first."""
        if self._record is None or self.plan.dry_run or self.plan.action not in COPYING:
            return True
        if self.looked_at - self._recorded_at < RECORDED:
            return True
        self._recorded_at = self.looked_at
        return await self._written(self._record(max(self.done, self._reserved)))

    async def _written(self, record: Awaitable[None]) -> bool:
        """Wait until the record is written. False if the job is to stop first."""
        writing = asyncio.ensure_future(record)
        await self._until_stopped(writing)
        if not writing.cancelled():
            writing.result()
        return not writing.cancelled()

    def _batch(self) -> int:
        """How many messages to look for next; 0 when the limit is reached."""
        limit, rate = self.plan.limit, self.plan.rate
        count = BATCH if rate is None else max(1, min(BATCH, int(rate / 10)))
        return count if limit is None else min(count, limit - self.done - self.under_way)

    async def _keep_to_rate(self) -> None:
        if self.plan.rate is None or self.plan.dry_run:
            return
        sent = self.done + self.under_way - self._done_before
        due_s = self._began_s + sent / self.plan.rate
        await self._pause(due_s - asyncio.get_running_loop().time())

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until the job is to stop."""
        if seconds > 0:
            try:
                await asyncio.wait_for(self._stop_wanted.wait(), seconds)
            except TimeoutError:
                return

    async def _wait_for_alarms(self) -> None:
        if self.plan.action is not Action.DELETE and not self.plan.dry_run:
            while self._node.alarms.raised and not self._stop_wanted.is_set():
                self.reason = "an alarm is raised: it goes on when that is over"
                await self._pause(ALARM_S)
            self.reason = ""

    # Carrying out the plan

    async def _note(self, found: Sequence[FoundMessages]) -> None:
        """Count for a dry run what the job would do."""
        for one in found:
            if self.plan.action is not Action.DELETE:
                if await self._found(one.message) is None:
                    continue
            self.done += 1
            if len(self.samples) < SAMPLES:
                self.samples.append(one)

    def _stays(self, why: str) -> None:
        known = why in self.left or len(self.left) < REASONS_MAX
        self.left[why if known else "other reasons"] += 1

    async def _handle(self, found: Sequence[FoundMessages]) -> None:
        ways: dict[QueuePlace, MessageTarget | None] = {}
        for place, message, state in found:
            assert state is not MessageState.UNACKED
            if self.plan.action is Action.DELETE:
                ways[place] = None
            elif (target := await self._found(message)) is not None:
                ways[place] = target
        if self.plan.action in COPYING:
            for place, message, _ in found:
                if (target := ways.get(place)) is not None:
                    self._copy(place, message, target)
            return
        await through(self.queue.until_available())
        taken: list[tuple[Message, MessageTarget | None]] = []
        for level in {place.level for place in ways}:
            positions = [place.position for place in ways if place.level == level]
            for message in self.queue.in_hand.take(level, positions):
                taken.append((message, ways[QueuePlace(level, message.position)]))
        if not taken:
            return
        if self.plan.action is not Action.DELETE and not await self._noted():
            self.queue.in_hand.put_back([message for message, _ in taken])
            return
        for message, target in taken:
            if target is None:
                self._delete(message)
            else:
                self._move(message, target)

    async def _noted(self) -> bool:
        """Wait until each possible new leader counts the messages taken out as delivered.

        Only then may they go elsewhere: if this node fails, the new leader delivers them again, and
        must mark them as redelivered. False if another node leads already, or the job is to stop.
        """
        noted = asyncio.ensure_future(through(self.queue.in_hand.noted()))
        await self._until_stopped(noted)
        return not noted.cancelled() and noted.result()

    async def _found(self, message: Message) -> MessageTarget | None:
        """Find the queues to which the message goes; count it and return None if it stays."""
        turns = self._node.turns
        if turns.over:
            await reached(turns.pause())
        turns.spend(len(message.envelope.header) // HEADER_OCTETS_PER_US)
        found = await through(turns.answer(lambda: self._find_or_why_not(message)))
        if isinstance(found, MessageTarget):
            return found
        self._stays(found)
        return None

    def _find_or_why_not(self, message: Message) -> MessageTarget | str:
        """Return where the message goes, or why it stays, as a text.

        It returns the text instead of raising `Stays`: once a coroutine has waited,
        `core.scheduling.waiting.run` hands its caller no exception but `BrokerError`.
        """
        try:
            return self._find(message)
        except Stays as stays:
            return str(stays)

    def _report(self, message: Message, target: MessageTarget | None) -> None:
        """Tell the virtual host's observer what the job is about to do with the message."""
        observer = self._vhost.observer
        if observer is not None:
            told = MessageTarget((), message.envelope) if target is None else target
            observer.taken(self.queue, self.plan.action.value, told.envelope, told.queues)

    def _delete(self, message: Message) -> None:
        self._report(message, None)
        self.queue.in_hand.settle((message,))
        self.queue.ways_out.purged += 1
        self.done += 1

    def _move(self, message: Message, target: MessageTarget) -> None:
        self._taken[message] = None
        self._send(message, target, lambda: self._moved(message), lambda: self._missed(message))

    def _copy(self, place: QueuePlace, message: Message, target: MessageTarget) -> None:
        """Raises `BrokerError` if the copies would exceed the quotas of the virtual host."""
        if self._vhost.quotas is not None:
            stock = Stock(1, len(message.body))
            self._vhost.quotas.take(dict.fromkeys(target.queues, stock))
        self._copying[place] = None

        def copied() -> None:
            del self._copying[place]
            self._arrived(message)

        def missed() -> None:
            del self._copying[place]
            self._lost(message)

        self._send(message, target, copied, missed)

    def _send(self, message: Message, target: MessageTarget, done: Any, missed: Any) -> None:
        self._report(message, target)
        self.under_way += 1
        self._bytes_under_way += message.body_bytes
        if target.exchange is not None:
            keys = target.envelope.routing_keys
            self._vhost.histories.keep(target.exchange, keys, target.envelope, message.body)
        self._succession.publish(target.queues, target.envelope, message.body, done, missed)

    def _moved(self, message: Message) -> None:
        del self._taken[message]
        self.queue.in_hand.settle((message,))
        self._arrived(message)

    def _arrived(self, message: Message) -> None:
        self.done += 1
        self._no_longer_under_way(message)

    def _missed(self, message: Message) -> None:
        del self._taken[message]
        self.queue.in_hand.put_back((message,))
        self._lost(message)

    def _lost(self, message: Message) -> None:
        self._stays("a queue was deleted before it had the message")
        self._no_longer_under_way(message)

    def _no_longer_under_way(self, message: Message) -> None:
        self.under_way -= 1
        self._bytes_under_way -= message.body_bytes
        self._less_under_way.set()

    async def _wait_for_room(self) -> None:
        while self.under_way + BATCH > UNDER_WAY_MAX or self._bytes_under_way > UNDER_WAY_BYTES:
            if self._stop_wanted.is_set():
                return
            self._less_under_way.clear()
            await self._until_stopped(asyncio.ensure_future(self._less_under_way.wait()))

    async def _until_stopped(self, task: asyncio.Future[Any]) -> None:
        """Wait for the task; cancel it when the job is to stop."""
        stopped = asyncio.ensure_future(self._stop_wanted.wait())
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.cancel():
            await asyncio.wait((task,))

    async def _all_arrived(self) -> None:
        """Wait for the messages under way. A stopped job does not wait for ever for a queue that is
        full or cannot be reached: messages for it are put back, as redelivered, since they may have
        arrived."""
        given_up_at: float | None = None
        while self.under_way:
            loop = asyncio.get_running_loop()
            if self._stop_wanted.is_set() and given_up_at is None:
                given_up_at = loop.time() + STOP_S
            if given_up_at is not None and loop.time() >= given_up_at:
                self._give_up()
                return
            self._less_under_way.clear()
            left_s = 1.0 if given_up_at is None else max(0.0, given_up_at - loop.time())
            try:
                await asyncio.wait_for(self._less_under_way.wait(), left_s)
            except TimeoutError:
                continue

    def _give_up(self) -> None:
        self._succession.end()
        taken, self._taken = list(self._taken), {}
        for message in taken:
            message.redelivered = True
            self._stays("no answer from the queue it goes to")
        self.queue.in_hand.put_back(taken)
        self.under_way = self._bytes_under_way = 0
