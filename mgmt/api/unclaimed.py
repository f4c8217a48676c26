"""Messages on disk that belong to no queue: listed, moved into a queue, or dropped.

These messages belong to queues whose definition was lost or damaged
(`persist/storage/unclaimed.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from warren.core.messages.message import Message
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms
from warren.core.queues.queue import Queue
from warren.mgmt.api.changes import audit
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import BadRequest, ObjectNotFound
from warren.mgmt.http.request import ApiRequest, demanded
from warren.mgmt.waiting import done
from warren.persist.definitions.deleted_queues import is_retained
from warren.persist.index.queue_index import QueueIndex
from warren.persist.storage.storage import Storage
from warren.persist.storage.unclaimed import UnclaimedMessages

BATCH_MESSAGES = 100
BATCH_BYTES = 256 << 10
"""The most messages, and octets of their records, that are moved in one turn of the loop."""

REQUEST_MESSAGES = 10_000
REQUEST_BYTES = 16 << 20
"""The most that one request moves, so that it ends before its client's timeout; the client repeats
it."""


class _Confirms(PublishConfirms):
    """`PublishConfirms` of one batch; `refused` are the numbers of messages the queue refused."""

    def __init__(self) -> None:
        self.refused: set[int] = set()
        self._open = 0
        self._decided = asyncio.Event()

    async def decided(self, count: int) -> None:
        """Return when the queue has settled or refused this many more messages."""
        self._open += count
        if self._open:
            await self._decided.wait()

    def settle(self, publish_seq: int) -> None:
        self._open -= 1
        if not self._open:
            self._decided.set()

    def refuse(self, publish_seq: int) -> None:
        self.refused.add(publish_seq)
        self.settle(publish_seq)


async def list_unclaimed(request: ApiRequest) -> Any:
    storage = request.managed.storage
    if storage is None:
        return []
    return [
        {
            "id": f"{row.queue_id:016x}",
            "messages": row.messages,
            "message_bytes": row.octets,
            "retained": row.retained,
        }
        for row in storage.unclaimed.rows()
    ]


async def recover(request: ApiRequest) -> Any:
    """Move messages into a queue; tells how many were moved, and how many are left.

    A message leaves its place only when the queue has it on disk, so after a crash it may be in
    both. With `retained` only acknowledged messages are moved, without it only the others.
    """
    storage, queue_id = _unclaimed(request)
    body = await request.body()
    name, vhost_name = demanded(body, "queue", "vhost")
    wants_retained = bool(body.get("retained", False))
    vhost = request.node.vhosts.get(vhost_name)
    queue = vhost.queues.get(name) if vhost is not None else None
    if queue is None:
        raise ObjectNotFound("not_found", f"no queue '{name}' in vhost '{vhost_name}'")
    if not queue.durable or queue.exclusive_owner is not None:
        raise BadRequest(f"queue '{name}' is not durable: the messages would not be safe in it")
    moved = octets = 0
    with storage.unclaimed.moving(queue_id) as may_move:
        if not may_move:
            raise BadRequest("these messages are being moved already")
        for index in storage.unclaimed.levels(queue_id):
            if is_retained(index.queue_id) is not wants_retained:
                continue
            while index.count and moved < REQUEST_MESSAGES and octets < REQUEST_BYTES:
                batch = await _moved(storage.unclaimed, index, queue)
                moved += len(batch)
                octets += sum(len(message.body) for message in batch)
    levels = storage.unclaimed.levels(queue_id)
    left = sum(at.count for at in levels if is_retained(at.queue_id) is wants_retained)
    if not any(at.count for at in levels):
        await done(storage.drop_unclaimed(queue_id))
    audit(
        request,
        "unclaimed_messages_recovered",
        id=f"{queue_id:016x}",
        queue=name,
        vhost=vhost_name,
        messages=moved,
        left=left,
    )
    return {"moved": moved, "left": left}


async def _moved(unclaimed: UnclaimedMessages, index: QueueIndex, queue: Queue) -> list[Message]:
    """Move the first messages of an index; returns them. Raises `BadRequest`."""
    batch = index.read(0, index.first_position(), BATCH_MESSAGES, BATCH_BYTES)
    confirms = _Confirms()
    pending = 0
    for number, message in enumerate(batch.messages):
        queue.published += 1
        # The message may have been delivered before the definition was lost.
        publish = queue.publish_again if message.redelivered else queue.publish
        answer = publish(message.envelope, message.body, confirms, number)
        pending += answer is PENDING
        if answer is REJECTED:
            confirms.refused.add(number)
    await confirms.decided(pending)
    taken = [
        message for number, message in enumerate(batch.messages) if number not in confirms.refused
    ]
    if not unclaimed.has(index):
        raise BadRequest("a queue with this id has been declared and has taken the messages")
    index.remove(taken)
    if confirms.refused:
        raise BadRequest(f"queue '{queue.name}' takes no more messages; check its limits")
    # Let other tasks run if nothing had to be waited for.
    await asyncio.sleep(0)
    return taken


async def forget(request: ApiRequest) -> Any:
    storage, queue_id = _unclaimed(request)
    count = sum(index.count for index in storage.unclaimed.levels(queue_id))
    await done(storage.drop_unclaimed(queue_id))
    audit(request, "unclaimed_messages_dropped", id=f"{queue_id:016x}", messages=count)
    return {"dropped": count}


def _unclaimed(request: ApiRequest) -> tuple[Storage, int]:
    """The storage, and the id in the path. Raises `ObjectNotFound`."""
    storage = request.managed.storage
    try:
        queue_id = int(request.name("id"), 16)
    except ValueError:
        queue_id = -1
    if storage is None or not storage.unclaimed.levels(queue_id):
        raise ObjectNotFound("not_found", f"no unclaimed messages with id {request.name('id')}")
    return storage, queue_id


ENDPOINTS = [
    Endpoint(
        "/unclaimed-messages",
        {"GET": list_unclaimed},
        Right.MONITOR,
        "Messages on disk of queues that no definition names",
    ),
    Endpoint(
        "/control/unclaimed-messages/{id}",
        {"DELETE": forget},
        Right.LOCAL,
        "Drop unclaimed messages",
    ),
    Endpoint(
        "/control/unclaimed-messages/{id}/recover",
        {"POST": recover},
        Right.LOCAL,
        "Move unclaimed messages into a queue",
    ),
]
