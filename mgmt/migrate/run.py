"""Goes through the queues of the source: once, or repeatedly until it is stopped.

Queues are moved one after the other, each up to the number of messages it had at the start of its
turn, so that a queue with continuous publishes does not keep the others waiting. Streams are
copied: what one has stays in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http import HTTPStatus
from itertools import groupby
from typing import Any, NamedTuple

from warren.mgmt.ctl.errors import CtlError, RequestRefused
from warren.mgmt.migrate import limits
from warren.mgmt.migrate.errors import MigrateError
from warren.mgmt.migrate.pair import Pair, SideFailed
from warren.mgmt.migrate.queue_move import (
    SILENCE_S,
    FirstMessages,
    Terms,
    message_property,
    move_queue,
)
from warren.mgmt.migrate.side import Side
from warren.mgmt.migrate.stream_copy import Copy, copy_stream, has_first
from warren.mgmt.migrate.window import MovedPublish
from warren.mgmt.pace import Pace

COLUMNS = (
    "vhost,name,type,durable,auto_delete,exclusive,consumers,messages,messages_unacknowledged,"
    f"delays,{limits.COLUMNS}"
)

CAME_MEANWHILE = "they came meanwhile, or came back from a client"

IDS_MAX = 100_000
"""How many message ids are reported for a queue; the number of messages is always reported."""

ROUND_S = 1.0
"""Pause between two rounds of `--follow` that found nothing to move."""

STATISTICS_S = 6
"""How old the statistics of a broker may be, in seconds."""

IMPERSONATOR = "impersonator"
EVERY_QUEUE = "*"


class MoveOptions(NamedTuple):
    vhost: str | None = None
    pattern: str = EVERY_QUEUE
    """The names of the queues to move: `*` and `?` as in a shell."""
    rate: float | None = None
    follow: bool = False
    quiet_s: float = 10.0
    """Time without a message after which `--follow` reports that all queues are empty."""
    silence_s: float = SILENCE_S
    statistics_s: int = STATISTICS_S


@dataclass
class QueueResult:
    """The findings and results for a queue; a count is None if the broker could not be asked."""

    vhost: str
    name: str
    source_before: int | None = None
    target_before: int | None = None
    source_after: int | None = None
    target_after: int | None = None
    unacked: int = 0
    """Messages that clients of the source hold and have not acknowledged."""
    moved: int = 0
    reason: str = ""
    stream: bool = False
    """The messages were copied, and are still at the source."""
    left_as_rule: bool = False
    """Queues of this kind are never moved, not even when they are empty."""
    doubtful: int = 0
    doubtful_ids: list[str] = field(default_factory=list)

    def found_by_listing(self, ready: int) -> None:
        """Note a count from the list, without asking the queue itself."""
        if self.source_before is None:
            self.source_before = ready
        self.source_after = ready

    @property
    def all_moved(self) -> bool:
        """Whether nothing is left behind; a queue that is never moved counts if it is empty."""
        in_the_way = self.reason and not self.left_as_rule
        return not (in_the_way or self.unacked or self.left_behind or self.doubtful)

    @property
    def left_behind(self) -> int:
        """Messages that are known to be at the source only."""
        return 0 if self.stream else self.source_after or 0


class MigrationProgress(NamedTuple):
    queue: str
    moved: int
    left: int
    """The number of messages that were ready when the round began and have not been moved."""


class MoveAudience:
    """Receives the progress of a run. This class ignores it."""

    def progress(self, progress: MigrationProgress) -> None:
        """One or more messages were moved."""

    def quiet(self, delayed: int) -> None:
        """With `--follow`: all queues have been empty for a while. `delayed` messages wait at the
        source until they are due."""

    def trouble(self, text: str) -> None:
        """With `--follow`: a round ended early, and is tried again."""


class SourceQueue(NamedTuple):
    """A queue, as the source's management API lists it."""

    vhost: str
    name: str
    ready: int
    unacked: int
    left_because: str
    """Why the queue is not to be moved; empty if it is."""
    delayed: bool = False
    """Its messages are routed to other queues when they are due, and moved from there."""
    stream: bool = False
    """Its messages are copied, and stay at the source."""
    kept: limits.LengthLimits = limits.kept({})

    @property
    def identity(self) -> tuple[str, str]:
        return self.vhost, self.name


class CopiedUpTo(NamedTuple):
    """How far a stream was copied by this run."""

    last: Copy | None
    """The last copy, if there is one."""
    ready: int
    """How many messages the stream had at the source then."""
    there: int
    """How many it had at the target then."""


class Round(NamedTuple):
    """How a round through all queues ended."""

    trouble: str
    """The failure because of which the round ended early: one of the brokers cannot be reached."""
    empty: bool
    """All queues that can be moved are empty, and no client holds a message of theirs."""
    delayed: int = 0
    """Delayed messages that wait at the source until they are due."""


async def move_messages(
    source: Side,
    target: Side,
    options: MoveOptions,
    stop: asyncio.Event,
    audience: MoveAudience | None = None,
) -> list[QueueResult]:
    """Move messages until all queues had their turn, or with `follow` until `stop` is set.

    Raises `CtlError` and `MigrateError` when the first round cannot begin.
    """
    run = _MoveRun(source, target, options, stop, audience or MoveAudience())
    return await run.carry_on()


def list_queues(source: Side, options: MoveOptions, *, first: bool = False) -> list[SourceQueue]:
    """The queues to move, ordered by virtual host and name, and those that are left. One that only
    holds delayed messages is there while it has some.

    Raises `MigrateError` if there is no such virtual host, and the first time if no queue matches.
    """
    path = ("queues",) if options.vhost is None else ("queues", options.vhost)
    try:
        rows: Iterable[Mapping[str, Any]] = source.get(*path, columns=COLUMNS)
    except RequestRefused as refused:
        if options.vhost is not None and refused.status == HTTPStatus.NOT_FOUND:
            raise MigrateError(f"the source has no virtual host '{options.vhost}'") from refused
        raise
    found = [_listed(row) for row in rows if fnmatchcase(row["name"], options.pattern)]
    if first and not found and options.pattern != EVERY_QUEUE:
        raise MigrateError(f"the source has no queue whose name matches '{options.pattern}'")
    return sorted(one for one in found if one.ready or not one.delayed)


def _listed(row: Mapping[str, Any]) -> SourceQueue:
    unacked = row.get("messages_unacknowledged") or 0
    ready = max(0, (row.get("messages") or 0) - unacked)
    if row.get("delays"):
        # No client holds messages of it: those that are not ready are on their way to other queues.
        ready += unacked
        return SourceQueue(row["vhost"], row["name"], ready, 0, left_because(row), delayed=True)
    kept = limits.kept(row)
    if is_stream(row):
        # Readers hold copies, and everything a stream has is ready.
        messages = row.get("messages") or 0
        return SourceQueue(row["vhost"], row["name"], messages, 0, "", stream=True, kept=kept)
    return SourceQueue(row["vhost"], row["name"], ready, unacked, left_because(row), kept=kept)


def is_stream(row: Mapping[str, Any]) -> bool:
    """Whether the queue in this row of the management API is a stream."""
    arguments = row.get("arguments") or {}
    return row.get("type") == "stream" or arguments.get("x-queue-type") == "stream"


def left_because(row: Mapping[str, Any]) -> str:
    if row.get("delays"):
        return f"delayed messages of exchange '{row['delays']}': clients get them when they are due"
    if row.get("exclusive"):
        return "exclusive: it belongs to a connection, and ends with it"
    if row.get("auto_delete"):
        clients = row.get("consumers") or 0
        who = f"{clients} consumers have it" if clients else "no consumer has it"
        return f"auto-delete: it would end with the last consumer, and {who}"
    return ""


class _MoveRun:
    def __init__(
        self,
        source: Side,
        target: Side,
        options: MoveOptions,
        stop: asyncio.Event,
        audience: MoveAudience,
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._stop = stop
        self._audience = audience
        self._results: dict[tuple[str, str], QueueResult] = {}
        self._pairs: dict[str, Pair] = {}
        """Connections, by virtual host, that the next round uses again."""
        self._kept: dict[tuple[str, ...], limits.LengthLimits] = {}
        """The limits of the target's queues, as they were last known."""
        self._copied: dict[tuple[str, str], CopiedUpTo] = {}
        """The streams that were copied up to their ends."""
        self._moved = 0
        self._left = 0
        self._pace = Pace(options.rate, asyncio.get_running_loop().time())
        self._impersonates = False

    async def carry_on(self) -> list[QueueResult]:
        tags = (await asyncio.to_thread(self._target.get, "whoami"))["tags"]
        self._impersonates = IMPERSONATOR in (tags.split(",") if isinstance(tags, str) else tags)
        await asyncio.to_thread(self._source.find_amqp)
        await asyncio.to_thread(self._target.find_amqp)
        try:
            await self._round(first=True)
            if self._options.follow:
                await self._follow()
        finally:
            for pair in self._pairs.values():
                await pair.close()
        await self._look_for_unacked()
        return list(self._results.values())

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        quiet_since: float | None = None
        told = False
        delayed = 0
        while not self._stop.is_set():
            before = self._moved
            try:
                done = await self._round()
            except CtlError as error:
                done = Round(error.text, empty=False)
            if done.trouble:
                self._audience.trouble(done.trouble)
            now = loop.time()
            if not done.empty or self._moved > before or done.delayed < delayed:
                quiet_since, told = None, False
            elif quiet_since is None:
                quiet_since = now
            delayed = done.delayed
            if quiet_since is not None and not told and now - quiet_since >= self._options.quiet_s:
                self._audience.quiet(delayed)
                told = True
            if self._moved == before:
                await self._pause(min(ROUND_S, self._options.quiet_s))

    async def _look_for_unacked(self) -> None:
        """Update counts of unacknowledged messages.

        RabbitMQ's figures are up to 5 s old, and may count messages that this run had in transit.
        """
        for _ in range(self._options.statistics_s):
            if not any(result.unacked for result in self._results.values()):
                return
            await asyncio.sleep(1)
            try:
                listed = await asyncio.to_thread(list_queues, self._source, self._options)
            except CtlError:
                return
            for queue in listed:
                self._result(queue)

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._stop.wait()
        except TimeoutError:
            return

    async def _round(self, *, first: bool = False) -> Round:
        """Give each queue its turn."""
        listed = await asyncio.to_thread(list_queues, self._source, self._options, first=first)
        self._left = sum(one.ready for one in listed if not one.left_because)
        self._forget_deleted(listed)
        trouble = ""
        for vhost, queues in groupby(listed, key=lambda one: one.vhost):
            trouble = await self._move_vhost(vhost, [*queues], trouble)
        full = any(
            result.left_behind or result.source_after is None or result.unacked
            for result in map(self._result, listed)
            if not result.left_as_rule
        )
        delayed = sum(one.ready for one in listed if one.delayed)
        return Round(trouble, not (trouble or full), delayed)

    def _forget_deleted(self, listed: list[SourceQueue]) -> None:
        """Clear the results of queues that no longer exist at the source."""
        there = {queue.identity for queue in listed}
        for key, result in self._results.items():
            if key not in there:
                result.source_after = 0 if result.left_as_rule else None
                result.unacked, result.reason = 0, ""

    async def _move_vhost(self, vhost: str, queues: list[SourceQueue], trouble: str) -> str:
        """Move a virtual host's queues; returns the failure if a broker cannot be reached."""
        pair = self._pairs.pop(vhost, None)
        locked_out = ""
        for queue in queues:
            result = self._result(queue)
            result.reason = queue.left_because or trouble or locked_out
            result.left_as_rule = bool(queue.left_because)
            if result.reason:
                result.found_by_listing(queue.ready)
                continue
            try:
                if pair is None or not pair.is_whole:
                    if pair is not None:
                        await pair.close()
                        pair = None
                    pair = await Pair.connect(self._source, self._target, vhost)
                await self._move(pair, queue, result)
            except SideFailed as failure:
                result.reason = failure.text
                result.found_by_listing(queue.ready)
                if failure.unreachable:
                    trouble = failure.text
                elif pair is None:
                    locked_out = failure.text
        if pair is not None and self._options.follow:
            self._pairs[vhost] = pair
        elif pair is not None:
            await pair.close()
        return trouble

    async def _move(self, pair: Pair, queue: SourceQueue, result: QueueResult) -> None:
        ready = await pair.count(pair.source, queue.name)
        there = await pair.count(pair.target, queue.name)
        if result.source_before is None:
            result.source_before, result.target_before = ready, there
        result.source_after, result.target_after = ready, there
        result.stream = queue.stream
        if not (ready or queue.stream):
            return
        if queue.stream:
            result.reason = await self._not_copied_because(queue)
        else:
            result.reason = await self._dropped_because(queue, ready + there)
        if result.reason:
            return
        if self._stop.is_set():
            reach = self._copied.get(queue.identity)
            if reach is None or reach.ready != ready:
                result.reason = "stopped before its turn"
        else:
            await self._move_messages(pair, queue, ready, there, result)
        result.source_after = await self._count(pair, "source", queue.name)
        result.target_after = await self._count(pair, "target", queue.name)
        if result.left_behind and not result.reason:
            result.reason = "stopped" if self._stop.is_set() else CAME_MEANWHILE

    async def _move_messages(
        self, pair: Pair, queue: SourceQueue, ready: int, there: int, result: QueueResult
    ) -> None:
        terms = Terms(
            self._pace,
            self._stop,
            lambda count: self._tell(result, count),
            self._target.username,
            self._impersonates,
            self._options.silence_s,
        )
        if queue.stream:
            reach = self._copied.pop(queue.identity, None)
            # If the target's stream has fewer messages than before, it may be another stream.
            known = reach.last if reach is not None and there >= max(reach.there, 1) else None
            moved, last = await copy_stream(
                pair, queue.name, terms, known, lambda count: self._expect(queue, count)
            )
            result.reason = moved.reason
            if not moved.reason:
                there = await pair.count(pair.target, queue.name)
                self._copied[queue.identity] = CopiedUpTo(last, ready, there)
                result.reason = await self._removed_because(pair, queue, terms)
        else:
            self._expect(queue, ready)
            moved = await move_queue(pair, queue.name, FirstMessages(ready), terms)
            result.reason = moved.reason
        _note_doubtful(result, moved.doubtful)

    def _expect(self, queue: SourceQueue, count: int) -> None:
        """Correct the number of messages that are left: the round moves `count` messages of the
        queue, whatever the list said."""
        self._left = max(0, self._left + count - queue.ready)

    async def _not_copied_because(self, queue: SourceQueue) -> str:
        """Why this stream can have no copy; else "".

        To read a queue that is no stream would empty it.
        """
        path = ("queues", queue.vhost, queue.name)
        try:
            row = await asyncio.to_thread(self._target.get, *path, columns=f"type,{limits.COLUMNS}")
        except CtlError as error:
            return error.text
        self._kept[path] = limits.kept(row)
        return "" if is_stream(row) else "the target's queue of this name is no stream"

    async def _removed_because(self, pair: Pair, queue: SourceQueue, terms: Terms) -> str:
        """Why the target has removed copies of messages that the source still has; "" if not.

        RabbitMQ does not tell how many octets a stream has, so this is looked at after copying.
        """
        most = self._kept["queues", queue.vhost, queue.name].octets
        if most >= queue.kept.octets or await has_first(pair, queue.name, terms):
            return ""
        return (
            f"the target keeps {most:,} octets of it at most (max-length-bytes),"
            " and has removed the oldest copies"
        )

    async def _dropped_because(self, queue: SourceQueue, messages: int) -> str:
        """Why the target would not keep so many messages of this queue; else ""."""
        path = ("queues", queue.vhost, queue.name)
        try:
            row = await asyncio.to_thread(self._target.get, *path, columns=limits.COLUMNS)
        except CtlError:
            # AMQP alone is needed to go on: what was known before holds.
            there = self._kept.get(path)
        else:
            there = self._kept[path] = limits.kept(row)
        return "" if there is None else limits.dropped_because(queue.kept, there, messages)

    async def _count(self, pair: Pair, role: str, queue: str) -> int | None:
        try:
            return await pair.count(pair.source if role == "source" else pair.target, queue)
        except SideFailed:
            return None

    def _tell(self, result: QueueResult, count: int) -> None:
        result.moved += count
        self._moved += count
        self._left = max(0, self._left - count)
        self._audience.progress(MigrationProgress(result.name, self._moved, self._left))

    def _result(self, queue: SourceQueue) -> QueueResult:
        key = queue.identity
        if key not in self._results:
            self._results[key] = QueueResult(*key)
        result = self._results[key]
        result.unacked = queue.unacked
        return result


def _note_doubtful(result: QueueResult, doubtful: list[MovedPublish]) -> None:
    result.doubtful += len(doubtful)
    for message in doubtful[: max(0, IDS_MAX - len(result.doubtful_ids))]:
        message_id = message_property(message.header, "message_id")
        if message_id is not None:
            result.doubtful_ids.append(message_id)
