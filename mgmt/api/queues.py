"""Queues: list, one, declare, delete, purge (management_api.md sections 2 and 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from warren.amqp.connection import Connection
from warren.amqp.names import checked_new_name, clean_name
from warren.core.backing.backing_queue import BackingQueueStatus
from warren.core.errors import BrokerError, PreconditionFailed
from warren.core.field import from_json, to_json
from warren.core.ports import Commit
from warren.core.queues.deduplicating_queue import DeduplicatingQueue
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import CLASSIC, MEMBER_TYPES, QUORUM, STREAM
from warren.core.vhosts.topology_access import check_queue
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt import queue_members
from warren.mgmt.api import stats_json
from warren.mgmt.api.backing_status import OF_ERLANG, backing_status, offsets, retained
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.api.consumers import consumer_row
from warren.mgmt.api.listed_queue import ListedQueue, leader_of, led_here, queue_of
from warren.mgmt.http.endpoint import CREATED, NO_CONTENT, Endpoint, HttpReply, Right
from warren.mgmt.http.errors import ApiError, BadRequest, ObjectNotFound
from warren.mgmt.http.lazy_list import LazyList
from warren.mgmt.http.listing import (
    Listing,
    Row,
    answer,
    answer_row,
    column_of,
    rows_at_once,
)
from warren.mgmt.http.request import ApiRequest, boolean, check_length, demanded
from warren.mgmt.http.slices import chunks
from warren.mgmt.peers import Peers
from warren.mgmt.statistics import figures
from warren.mgmt.statistics.sampler import Statistics
from warren.mgmt.waiting import taken, through

IDLE_S = 10.0
"""A queue without activity for so long is shown as idle."""

DEFINED = ("name", "vhost", "durable", "auto_delete", "type", "node")
"""Columns that every node knows of every queue, also of those on other nodes."""


ASKED_VALUES_MAX = 5000
"""The most queues for which another node is asked for one column in one request."""

OF_NODES = "/nodes-queues"
"""The path at which other nodes, and only they, ask for rows of queues that this node has."""


class QueueRows:
    """Makes the JSON of queues for one request."""

    def __init__(self, request: ApiRequest, *, with_samples: bool = True) -> None:
        self._request = request
        self._node = request.node
        self._statistics: Statistics = request.managed.statistics
        self._lengths: list[float] = []
        self._rates: list[float] = []
        if with_samples:
            kinds = ("lengths", "msg_rates")
            self._lengths, self._rates = stats_json.times_of_kinds(request, *kinds)

    def row(self, listed: ListedQueue) -> Row:
        """The row of a list, with all its columns."""
        queue = led_here(listed)
        passed, lengths = self._shown(queue)
        status = queue.backing.status(self._node.clock.now())
        stats = passed.message_stats()
        if queue.settings.type is QUORUM:
            return {
                **self.basics(listed),
                **self._policy(listed),
                **self._state(queue),
                **lengths.levels(*figures.LENGTHS),
                **self._octets(queue),
                **self._consumers_of_quorum(queue),
                **({"message_stats": stats} if stats else {}),
                "memory": status.memory_bytes,
                **OF_ERLANG,
                "open_files": dict.fromkeys(self._members(queue)["members"], 0),
            }
        if queue.settings.type is STREAM:
            return {
                **self.basics(listed),
                **self._policy(listed),
                **self._state(queue),
                **lengths.levels(*figures.LENGTHS),
                **offsets(queue, self._node.name),
                "consumers": queue.consumer_total,
                **({"message_stats": stats} if stats else {}),
                "memory": status.memory_bytes,
                **OF_ERLANG,
            }
        return {
            **self.basics(listed),
            **self._policy(listed),
            **self._state(queue),
            **lengths.levels(*figures.LENGTHS),
            **self._where(queue, status),
            **self._consumers(queue),
            **({"message_stats": stats} if stats else {}),
            **({"messages_waiting": queue.waiting} if queue.settings.counts_returns else {}),
            **_deduplication(queue),
            **retained(queue),
            "backing_queue_status": backing_status(status),
            "memory": status.memory_bytes,
            **OF_ERLANG,
            "recoverable_slaves": None,
            "head_message_timestamp": None,
        }

    def cheap_row(self, listed: ListedQueue) -> Row:
        """The row with `disable_stats`."""
        row = self.basics(listed)
        if self._request.query_flag("enable_queue_totals"):
            queue = led_here(listed)
            row["messages"] = queue.stock().messages
            row["messages_ready"] = queue.backing.length
            row["messages_unacknowledged"] = queue.unacked
        return row

    def full_row(self, listed: ListedQueue) -> Row:
        """The row of a single queue, with its consumers."""
        vhost, queue = listed.vhost, led_here(listed)
        return {
            **self.row(listed),
            "consumer_details": [
                consumer_row(vhost, consumer, self._node.name) for consumer in queue.consumers
            ],
            "incoming": [],
            "deliveries": [],
            **retained(queue, since=True),
            **self._shown(queue)[0].levels(*figures.WAYS_OUT),
            **self._ring(queue),
        }

    def down_row(self, listed: ListedQueue) -> Row:
        """The row of a queue whose node cannot be asked."""
        return {**self.basics(listed), **self._policy(listed), **self._down(listed.queue)}

    def full_down_row(self, listed: ListedQueue) -> Row:
        """The row of a single queue whose node cannot be asked."""
        return {**self.down_row(listed), **self._ring(listed.queue)}

    def basics(self, listed: ListedQueue) -> Row:
        vhost, queue = listed
        return {
            "name": queue.name,
            "vhost": vhost.name,
            "type": str(queue.settings.type),
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.exclusive_owner is not None,
            "arguments": to_json(queue.arguments),
            "node": leader_of(self._request, listed),
            **({"delays": queue.settings.delays} if queue.settings.delays is not None else {}),
            **self._members(queue),
            **self._mirrors(queue),
        }

    def _members(self, queue: Queue) -> Row:
        """The members of a quorum queue or a stream. RabbitMQ names the leader of quorum queues."""
        managed, kind = self._request.managed, queue.settings.type
        if kind not in MEMBER_TYPES:
            return {}
        leader = {"leader": queue_members.leader_of(managed, queue)} if kind is QUORUM else {}
        return {
            **leader,
            "members": queue_members.members_of(managed, queue),
            "online": queue_members.online_of(managed, queue),
        }

    def _mirrors(self, queue: Queue) -> Row:
        """The nodes that mirror a queue; on its leader, also how far synchronisations are."""
        cluster = self._request.managed.cluster
        state = cluster.mirroring.figures.state(queue) if cluster is not None else None
        if state is None:
            return {}
        mirrors: Row = {
            "slave_nodes": list(state.mirrors),
            "synchronised_slave_nodes": list(state.in_sync),
        }
        row: Row = {
            # The copies of a quorum queue or a stream are its members.
            **(mirrors if queue.settings.type is CLASSIC else {}),
            "promoted": state.promoted,
            "promoted_at": _moment(state.promoted_at) if state.promoted_at else None,
            "mirror_lag": {mirror: lag.batches for mirror, lag in state.lag.items()},
            "mirror_lag_bytes": {mirror: lag.octets for mirror, lag in state.lag.items()},
        }
        if state.progress:
            now = self._node.clock.now()
            row["sync_messages"] = sum([progress.sent for progress in state.progress.values()])
            row["sync_progress"] = {
                mirror: {
                    "sent": progress.sent,
                    "total": progress.total,
                    "seconds_left": progress.seconds_left(now),
                }
                for mirror, progress in state.progress.items()
            }
        return row

    def _ring(self, queue: Queue) -> Row:
        """The ring of nodes along which the messages of a mirrored queue are passed on."""
        cluster = self._request.managed.cluster
        ring = cluster.mirroring.figures.ring(queue) if cluster is not None else ()
        if not ring:
            return {}
        return {"mirror_ring": [{"node": node, "state": str(standing)} for node, standing in ring]}

    def _shown(self, queue: LocalQueue) -> tuple[stats_json.ShownStats, stats_json.ShownStats]:
        """Figures for message stats and for lengths: each of them has samples of its own range."""
        track = self._statistics.queues
        current = figures.queue_figures(queue)
        rates = track.rates(queue, self._node.clock.now(), current)
        offset_s = stats_json.wall_offset_s(self._request)
        passed = track.samples(queue, self._rates) if self._rates else []
        if self._lengths == self._rates:
            lengths = passed
        else:
            lengths = track.samples(queue, self._lengths) if self._lengths else []
        return (
            stats_json.ShownStats(figures.QUEUE, current, rates, passed, offset_s),
            stats_json.ShownStats(figures.QUEUE, current, rates, lengths, offset_s),
        )

    def _policy(self, listed: ListedQueue) -> Row:
        queue = listed.queue
        applied = self._node.policies.applied(
            queue.vhost_name, queue.name, "queue", queue.settings.type
        )
        return {
            "policy": applied.policy,
            "operator_policy": applied.operator_policy,
            "effective_policy_definition": dict(applied.definition),
        }

    def _down(self, queue: Queue) -> Row:
        cluster = self._request.managed.cluster
        awaited = cluster.mirroring.figures.waits_for(queue) if cluster is not None else ""
        return {"state": "down", **({"waits_for": awaited} if awaited else {})}

    def _state(self, queue: LocalQueue) -> Row:
        if queue.is_held and "waits_for" in (down := self._down(queue)):
            return down
        changed_at = self._statistics.queues.changed_at(queue)
        now = self._node.clock.now()
        if self._request.managed.paused:
            return {"state": "stopped"}
        if changed_at is not None and now - changed_at < IDLE_S:
            return {"state": "running"}
        since = self._node.started_at
        if changed_at is not None:
            since = changed_at + stats_json.wall_offset_s(self._request)
        return {"state": "running", "idle_since": _moment(since)}

    def _consumers(self, queue: LocalQueue) -> Row:
        capacity = self._statistics.capacity(queue)
        tag = next((c.tag for c in queue.consumers if c.exclusive), None)
        active = queue.active_consumer
        row: Row = {
            "consumers": queue.consumer_total,
            "consumer_capacity": capacity,
            "consumer_utilisation": capacity,
            "exclusive_consumer_tag": tag,
            "single_active_consumer_tag": active.tag if active is not None else None,
        }
        owner = queue.exclusive_owner
        if isinstance(owner, Connection):
            row["owner_pid_details"] = {
                "name": owner.peer.name,
                "peer_host": owner.peer.host,
                "peer_port": owner.peer.port,
            }
        return row

    def _consumers_of_quorum(self, queue: LocalQueue) -> Row:
        """The consumers of a quorum queue, of which none is exclusive."""
        row = self._consumers(queue)
        row["single_active_consumer_ctag"] = row.pop("single_active_consumer_tag")
        del row["exclusive_consumer_tag"]
        return row

    def _octets(self, queue: LocalQueue) -> Row:
        """The octets of a quorum queue: all of its messages are on disk."""
        ready_bytes = queue.backing.ready_bytes
        dead, dead_bytes = queue.set_aside
        row: Row = {
            "messages_persistent": queue.backing.length + queue.unacked + dead,
            "messages_ram": 0,
            "messages_dlx": dead,
            "message_bytes_ready": ready_bytes,
            "message_bytes_ram": 0,
            "message_bytes_dlx": dead_bytes,
        }
        unacked_bytes = self._statistics.unacked_octets.of(queue)
        if unacked_bytes is not None:
            total = ready_bytes + unacked_bytes + dead_bytes
            row["message_bytes"] = row["message_bytes_persistent"] = total
            row["message_bytes_unacknowledged"] = unacked_bytes
        return row

    def _where(self, queue: LocalQueue, status: BackingQueueStatus) -> Row:
        """How many messages and octets are in memory, on disk and unacknowledged."""
        ready_bytes = queue.backing.ready_bytes
        persistent, persistent_bytes = status.persistent if queue.survives else (0, 0)
        in_memory = self._request.managed.storage is None
        unacked_ram = queue.unacked if in_memory else status.ram_ack_count
        row: Row = {
            "messages_ram": status.ram_msg_count + unacked_ram,
            "messages_ready_ram": status.ram_msg_count,
            "messages_unacknowledged_ram": unacked_ram,
            "messages_persistent": persistent,
            "messages_paged_out": status.len - status.ram_msg_count,
            "message_bytes_ready": ready_bytes,
            "message_bytes_ram": status.ram_bytes,
            "message_bytes_paged_out": ready_bytes - status.ram_bytes,
            "message_bytes_persistent": persistent_bytes,
        }
        unacked_bytes = self._statistics.unacked_octets.of(queue)
        if unacked_bytes is not None:
            row["message_bytes"] = ready_bytes + unacked_bytes
            row["message_bytes_unacknowledged"] = unacked_bytes
            # Where only some of them are in memory, their share of the octets is an estimate.
            row["message_bytes_ram"] += unacked_bytes * unacked_ram // max(queue.unacked, 1)
        return row


def _moment(wall_time: float) -> str:
    """Seconds since 1970 as a text for people."""
    return datetime.fromtimestamp(wall_time, UTC).isoformat(timespec="milliseconds")


class QueuesElsewhere:
    """Rows and columns of a list of queues, some of which are on other nodes."""

    def __init__(self, request: ApiRequest, peers: Peers, own: QueueRows) -> None:
        self._request = request
        self._peers = peers
        self._own = own

    async def rows(self, queues: list[ListedQueue]) -> list[Row]:
        found = await self._ask(queues, None)
        cheap = self._request.query_flag("disable_stats")
        make = self._own.cheap_row if cheap else self._own.row
        rows: list[Row] = []
        async for chunk in chunks(queues, rows_at_once(self._request)):
            for listed in chunk:
                if listed.queue.is_here:
                    rows.append(make(listed))
                else:
                    rows.append(found.get(_path(listed)) or self._own.down_row(listed))
        return rows

    async def values(
        self, queues: Sequence[ListedQueue], column: str
    ) -> Callable[[ListedQueue], Any]:
        """A function that gives this column of a queue; other nodes have been asked for theirs."""
        own = column_of(_local_listing(self._request), column)
        if column in DEFINED:
            return own
        found: dict[tuple[str, str], Any] = {}
        for start in range(0, len(queues), ASKED_VALUES_MAX):
            part = queues[start : start + ASKED_VALUES_MAX]
            found.update(await self._ask(part, column))

        def value(listed: ListedQueue) -> Any:
            return own(listed) if listed.queue.is_here else found.get(_path(listed))

        return value

    async def _ask(
        self, queues: Sequence[ListedQueue], column: str | None
    ) -> dict[tuple[str, str], Any]:
        """Rows, or one column, of queues on other nodes; unanswered ones are left out."""
        wanted: dict[str, list[tuple[str, str]]] = {}
        for listed in queues:
            if not listed.queue.is_here:
                wanted.setdefault(leader_of(self._request, listed), []).append(_path(listed))
        asked = await asyncio.gather(
            *(self._asked(node, paths, column) for node, paths in wanted.items())
        )
        return {
            path: answer
            for paths, answers in zip(wanted.values(), asked, strict=True)
            for path, answer in zip(paths, answers, strict=False)
        }

    async def _asked(
        self, node: str, paths: list[tuple[str, str]], column: str | None
    ) -> list[Any]:
        body = {"queues": paths, "column": column}
        try:
            answers = await self._peers.ask(node, self._request, OF_NODES, method="POST", body=body)
        except (ApiError, BrokerError):
            return []
        return answers if isinstance(answers, list) else []


def _path(listed: ListedQueue) -> tuple[str, str]:
    return listed.vhost.name, listed.queue.name


async def rows_for_node(request: ApiRequest) -> Any:
    """Rows, or one column, of the queues in the body; null for queues that are elsewhere."""
    if not request.passed:
        raise ObjectNotFound()
    paths, column = demanded(await request.body(), "queues", "column")
    listing = _local_listing(request)
    make = listing.row if column is None else column_of(listing, column)
    answers: list[Any] = []
    async for chunk in chunks(paths, rows_at_once(request)):
        for vhost_name, name in chunk:
            vhost = request.node.vhosts.get(vhost_name)
            queue = vhost.queues.get(name) if vhost is not None else None
            here = vhost is not None and queue is not None and queue.is_here
            answers.append(make(ListedQueue(vhost, queue)) if here else None)  # type: ignore[arg-type]
    return answers


def _listing(request: ApiRequest) -> Listing[ListedQueue]:
    local = _local_listing(request)
    peers = request.peers
    if peers is None:
        return local
    elsewhere = QueuesElsewhere(request, peers, QueueRows(request))
    cheap = request.query_flag("disable_stats")
    defined_only = cheap and not request.query_flag("enable_queue_totals")
    return replace(local, rows=None if defined_only else elsewhere.rows, values=elsewhere.values)


def _local_listing(request: ApiRequest) -> Listing[ListedQueue]:
    rows = QueueRows(request)
    cheap = request.query_flag("disable_stats")
    return Listing(
        row=rows.cheap_row if cheap else rows.row,
        plain=rows.cheap_row if cheap else QueueRows(request, with_samples=False).row,
        name=lambda listed: listed.queue.name,
        keys={
            "name": lambda listed: listed.queue.name,
            "vhost": lambda listed: listed.vhost.name,
            "messages": lambda listed: led_here(listed).stock().messages,
            "messages_ready": lambda listed: led_here(listed).backing.length,
            "messages_unacknowledged": lambda listed: led_here(listed).unacked,
            "consumers": lambda listed: led_here(listed).consumer_total,
            "message_bytes_ready": lambda listed: led_here(listed).backing.ready_bytes,
            "durable": lambda listed: listed.queue.durable,
            "auto_delete": lambda listed: listed.queue.auto_delete,
            "type": lambda listed: str(listed.queue.settings.type),
            "node": lambda listed: leader_of(request, listed),
        },
    )


def _queues_of(request: ApiRequest, vhosts: list[VirtualHost]) -> LazyList[ListedQueue]:
    return LazyList(
        [(request.managed.queues.of(vhost), partial(ListedQueue, vhost)) for vhost in vhosts]
    )


async def list_queues(request: ApiRequest) -> Any:
    return await answer(request, _queues_of(request, request.visible_vhosts()), _listing(request))


async def list_queues_of_vhost(request: ApiRequest) -> Any:
    return await answer(request, _queues_of(request, [request.vhost()]), _listing(request))


async def get_queue(request: ApiRequest) -> Any:
    listed = queue_of(request)
    peers = request.peers
    if listed.queue.is_here or peers is None:
        return answer_row(request, QueueRows(request).full_row(listed))
    parts = dict(request.http.match_info)
    try:
        row = await peers.ask(leader_of(request, listed), request, "/queues/{vhost}/{queue}", parts)
    except BrokerError:
        row = QueueRows(request).full_down_row(listed)
    return answer_row(request, row)


async def put_queue(request: ApiRequest) -> HttpReply:
    vhost, name = request.vhost(), clean_name(request.name("queue"))
    body = await request.body()
    wanted = {
        "durable": boolean(body.get("durable", False)),
        "auto_delete": boolean(body.get("auto_delete", False)),
    }
    arguments = body.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise BadRequest("arguments should be an object")
    table = vhost.with_default_type(from_json(arguments), exclusive=False, **wanted)
    if not name:
        raise BadRequest("a queue needs a name")
    check_length(name, "queue")
    checked_new_name("queue", name)
    request.check(vhost.name, "queue", name, "configure")
    request.node.counts.queues_declared += 1

    def declare() -> Commit | None:
        existing = vhost.queues.get(name)
        if existing is not None:
            vhost.check_queue_equivalent(existing, None, exclusive=False, arguments=table, **wanted)
            existing.touch()
            return None
        vhost.check_queue_limit(name)
        check_queue(request.asking(vhost), name, table)
        user = request.caller.user.name
        return vhost.declare_queue(
            name, exclusive_owner=None, arguments=table, declared_by=user, **wanted
        )

    return CREATED if await taken(declare) else NO_CONTENT


async def delete_queue(request: ApiRequest) -> None:
    vhost, queue = queue_of(request)
    request.check(vhost.name, "queue", queue.name, "configure")
    queue.check_access(None)
    if_unused, if_empty = request.query_flag("if-unused"), request.query_flag("if-empty")
    await through(queue.end(if_unused=if_unused, if_empty=if_empty))
    await durable(request)
    audit(request, "queue_deleted", vhost=vhost.name, queue=queue.name, messages=queue.left_ready)


async def purge_queue(request: ApiRequest) -> None:
    vhost, queue = queue_of(request)
    request.check(vhost.name, "queue", queue.name, "read")
    queue.check_access(None)
    count = await through(queue.empty())
    audit(request, "queue_purged", vhost=vhost.name, queue=queue.name, messages=count)


async def act(request: ApiRequest) -> None:
    """Synchronise a queue's mirrors, or stop that; without a cluster a queue has no mirrors."""
    vhost, queue = queue_of(request)
    (action,) = demanded(await request.body(), "action")
    if action not in ("sync", "cancel_sync"):
        raise BadRequest(["unknown", action])
    cluster = request.managed.cluster
    if cluster is not None:
        await through(cluster.mirroring.act(queue, synchronise=action == "sync"))
        return
    described = f"queue '{queue.name}' in vhost '{vhost.name}'"
    raise PreconditionFailed(f"{described} is not mirrored, there is nothing to synchronise")


FOR_NODES = [Endpoint(OF_NODES, {"POST": rows_for_node}, summary="Rows for another node")]

ENDPOINTS = [
    Endpoint("/queues", {"GET": list_queues}, summary="All queues"),
    Endpoint("/queues/{vhost}", {"GET": list_queues_of_vhost}, summary="Queues of a vhost"),
    Endpoint(
        "/queues/{vhost}/{queue}",
        {"GET": get_queue, "PUT": put_queue, "DELETE": delete_queue},
        summary="One queue",
    ),
    Endpoint("/queues/{vhost}/{queue}/contents", {"DELETE": purge_queue}, summary="Purge a queue"),
    Endpoint(
        "/queues/{vhost}/{queue}/actions",
        {"POST": act},
        # RabbitMQ lets administrators only; but a user who may set policies can do the same by a
        # policy.
        Right.POLICYMAKER,
        summary="Synchronise a mirrored queue",
    ),
]


def _deduplication(queue: Queue) -> Row:
    """The window of a queue that takes each message id once, on the node that leads it."""
    return {"deduplication": queue.window()} if isinstance(queue, DeduplicatingQueue) else {}
