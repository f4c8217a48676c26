"""An operator of a simulated cluster, who moves, copies, replays and deletes messages.

The jobs are the real ones, on the clock of the node that leads the queue. What one sends to a queue
counts as a publish of the operator, confirmed when the job says that it is there; so all that must
hold of confirmed publishes must hold of moved messages, whatever fails meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import cluster_checks as checks
from clock_loop import ClockLoop
from cluster_client import Publish

from warren.core.errors import PreconditionFailed
from warren.core.messages.message import Message
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.messages_in_hand import MessagesInHand
from warren.mgmt.http import slices
from warren.mgmt.messages.job import Job, JobState
from warren.mgmt.messages.plan import Action, JobPlan
from warren.mgmt.messages.targets import MessageTarget

if TYPE_CHECKING:
    from cluster_history import History

MOVED, COPIED = "moved", "copied"
"""Where moved messages go, and where copies of them and replayed ones do."""

ACTIONS = (Action.MOVE,) * 5 + (Action.COPY, Action.DELETE) + (Action.REPLAY,) * 2
LIMITS = (None, None, 1, 5, 30)
RATES = (None, None, None, 20.0)


class WatchedJob(Job):
    """A job that tells the operator what it does with each message."""

    def __init__(self, operator: Operator, node: Any, queue: LocalQueue, plan: JobPlan) -> None:
        self._operator = operator
        self.sent: dict[Message, Publish] = {}
        super().__init__(node, queue, plan, None)

    def _report(self, message: Message, target: MessageTarget | None) -> None:
        super()._report(message, target)
        if target is not None:
            self.sent[message] = self._operator.sends(self, message, target)

    def _delete(self, message: Message) -> None:
        self._operator.deletes(message)
        super()._delete(message)

    def _moved(self, message: Message) -> None:
        self._operator.moved(message)
        super()._moved(message)

    def _arrived(self, message: Message) -> None:
        self._operator.arrived(self.sent[message])
        super()._arrived(message)


class Running(NamedTuple):
    job: WatchedJob
    task: asyncio.Task[None]
    node: Any


class Operator:
    """Of one history. `taken` are the numbers of all messages that a job ever took out of a queue,
    `sent_on` of those that it then sent elsewhere, and `gone` of those that have left it for good.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self.sent: list[Publish] = []
        self.taken: set[int] = set()
        self.sent_on: set[int] = set()
        self.gone: set[int] = set()
        # What is in lost and found.
        self.found: set[int] = set()
        # What left its queue while nothing failed, and is to be nowhere else.
        self.moved_in_peace: set[int] = set()
        self.is_peace = False
        self._running: list[Running] = []

    # What jobs do

    def sends(self, job: Job, message: Message, target: MessageTarget) -> Publish:
        (queue,) = target.queues
        number, persistent = int(message.body), message.envelope.persistent
        publish = Publish(number, queue.name, "operator", persistent, self._history.now)
        self.sent.append(publish)
        if job.plan.action is Action.MOVE:
            self.sent_on.add(number)
        return publish

    def arrived(self, publish: Publish) -> None:
        publish.confirmed_at = self._history.now

    def moved(self, message: Message) -> None:
        number = int(message.body)
        self.gone.add(number)
        if self.is_peace:
            self.moved_in_peace.add(number)

    def deletes(self, message: Message) -> None:
        publish = self._history.publishes[int(message.body)]
        publish.excused = publish.excused or "an operator deleted it"
        self.gone.add(publish.number)

    def took(self, messages: Sequence[Message]) -> None:
        """Put back, they come behind later ones; and mirrors count them as delivered."""
        for message in messages:
            number = int(message.body)
            self.taken.add(number)
            self._history.publishes[number].was_given_back = True
        self._history.put_back(messages)

    def has_sent(self, number: int) -> bool:
        return any(publish.number == number for publish in self.sent)

    def may_be_lost(self, publish: Publish, ledger: checks.Ledger) -> bool:
        """Whether it was moved to a queue whose nodes may have lost it there."""
        there = [one for one in self.sent if one.number == publish.number and one.queue == MOVED]
        return any(ledger.may_be_lost(one) for one in there)

    # What the operator does

    def begin(self, queue: str, random: Random) -> None:
        """Begin some job on a queue, at a node that thinks that it leads it."""
        leading = list(self._leading(queue))
        if not leading:
            return
        node, at = random.choice(leading)
        action = random.choice(ACTIONS)
        to = {Action.MOVE: MOVED, Action.COPY: COPIED, Action.REPLAY: COPIED}.get(action)
        plan = JobPlan(action, to_queue=to, limit=random.choice(LIMITS), rate=random.choice(RATES))
        stops_after_s = random.choice((None, None, 0.05, 1.0))
        kills_after_s = random.choice((None, None, None, 0.01, 0.1, 0.5))
        running = self._start(node, at, plan)
        if running is None:
            return
        history = self._history
        if stops_after_s is not None:
            history.after(stops_after_s, lambda: _stop(running.job))
        if kills_after_s is not None:
            history.after(kills_after_s, lambda: self._kill(running))

    def _leading(self, queue: str) -> Iterator[tuple[Any, LocalQueue]]:
        cluster = self._history.cluster
        for name in cluster.working:
            at = cluster[name].vhost.queues.get(queue)
            if at is not None and at.is_here:
                yield cluster[name], at

    def _start(self, node: Any, queue: LocalQueue, plan: JobPlan) -> Running | None:
        try:
            job = WatchedJob(self, node.node, queue, plan)
        except PreconditionFailed:
            # It retains nothing.
            return None
        self._history.seen[f"job: {plan.action}"] += 1
        running = Running(job, ClockLoop(node.clock).create_task(job.run()), node)
        self._running.append(running)
        return running

    def _kill(self, running: Running) -> None:
        name = running.node.name
        if not running.job.is_over and self._is_up(running):
            self._history.seen["node of a job killed"] += 1
            self._history._kill(name)

    def _is_up(self, running: Running) -> bool:
        cluster, name = self._history.cluster, running.node.name
        return cluster[name] is running.node and name in cluster.working

    # Checks

    def check_over(self) -> None:
        """All jobs of nodes that live are over, and they hold nothing in hand."""
        cluster, seen = self._history.cluster, self._history.seen
        for running in self._running:
            job, task, node = running
            if cluster[node.name] is not node:
                seen["job died with its node"] += 1
                continue
            if not task.done() and job.plan.rate is not None:
                # At its rate it may have more to do than there was time for.
                self._history._rest(60.0)
            assert task.done(), (
                f"job to {job.plan.action} {job.queue.name} at {node.name} is {job.state},"
                f" {job.under_way} under way"
            )
            task.result()
            seen[f"job {job.state}"] += 1
        self._running.clear()
        for name in cluster.alive:
            for queue in cluster[name].node.local_queues:
                assert not len(queue.in_hand), f"{name} has {list(queue.in_hand)} in hand"

    def do_in_peace(self, queue: str, action: Action) -> WatchedJob | None:
        """Do it all while nothing fails."""
        record = checks.queue_records(self._history.cluster).get(queue)
        if record is None:
            return None
        node = self._history.cluster[record.leader]
        to = MOVED if action is Action.MOVE else COPIED
        running = self._start(node, node.queue(queue), JobPlan(action, to_queue=to))
        if running is None:
            return None
        self.is_peace = True
        self._history._rest(10.0)
        self.is_peace = False
        job, task, _ = running
        assert task.done(), f"job to {action} {queue} hangs: {job.under_way} under way"
        task.result()
        assert job.state is JobState.COMPLETED, f"job to {action} {queue}: {job.state} {job.reason}"
        assert not job.left and job.done == job.matched, f"{job.done} of {job.matched}: {job.left}"
        self._check_left(queue)
        return job

    def _check_left(self, queue: str) -> None:
        """What has left a mirrored queue is kept by its leader no more."""
        history = self._history
        cluster = history.cluster
        gone = {
            number
            for number in self.moved_in_peace
            if not history.ledger.may_be_there_twice(history.publishes[number])
        }
        record = checks.queue_records(cluster)[queue]
        if record.leader in cluster.alive and record.mirrors:
            for level in checks.levels_of(cluster[record.leader], record.queue_id):
                kept = {int(message.body) for message in level.pending.values()}
                assert not kept & gone, f"{queue} keeps what was moved: {kept & gone}"

    def check_found(self, queue: str, found: Iterable[Publish], ledger: checks.Ledger) -> None:
        """All that jobs have sent there is there, but for what its nodes may have lost; what only
        a node had that came back too late is in lost and found."""
        counts = Counter([publish.number for publish in found])
        sent = [publish for publish in self.sent if publish.queue == queue]
        others = counts.keys() - {publish.number for publish in sent}
        assert not others, f"nobody sent {sorted(others)[:5]} to {queue}"
        there = counts.keys() | (self.found if queue in ledger.led_out_of_sync else set())
        lost = [
            publish
            for publish in sent
            if publish.confirmed_at is not None
            and publish.number not in there
            and not ledger.may_be_lost(publish)
        ]
        assert not lost, f"E1: {len(lost)} moved or copied are lost, such as {lost[:3]}"
        self._history.seen[f"found in {queue}"] += len(counts)


def _stop(job: Job) -> None:
    if not job.is_over:
        job.stop()


class _FreshTurns:
    """Instead of those of the thread: a node that dies has given its turn to nobody."""

    @property
    def turns(self) -> slices.SliceTurns:
        return slices.SliceTurns()


@contextmanager
def watching_operator(operator: Operator) -> Iterator[None]:
    """What jobs take is known; and no real time has a part in what they do."""
    take, turns, slice_s = MessagesInHand.take, slices._of_thread, slices.SLICE_S

    def watched(hand: MessagesInHand, level: int, positions: Sequence[int]) -> list[Message]:
        messages = take(hand, level, positions)
        operator.took(messages)
        return messages

    MessagesInHand.take = watched  # type: ignore[method-assign]
    slices._of_thread, slices.SLICE_S = _FreshTurns(), 1e9  # type: ignore[assignment]
    try:
        yield
    finally:
        MessagesInHand.take = take  # type: ignore[method-assign]
        slices._of_thread, slices.SLICE_S = turns, slice_s
