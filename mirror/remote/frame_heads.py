"""The heads of the frames between the leader of a queue and the nodes whose clients use it."""

from __future__ import annotations

from struct import Struct, error

from warren.mirror.messages.post import Undeliverable

QUEUE = Struct("<Q")
"""The id of the queue, with which every head begins."""

PUBLISH = Struct("<QQ")
"""The queue, and its epoch as far as the publishing node knows."""

HEARD = Struct("<QQ")
"""The id of the queue, and the number of the last refused publish: the node knows of all refusals
up to this one."""

CONSUMER = Struct("<QI")
"""The queue, and the number of a consumer."""

CONSUMER_STATE = Struct("<QI?I")
"""The same, whether the consumer is blocked, and 0."""


def unpacked(head: Struct, payload: bytes) -> tuple[int, ...]:
    """The fields of a head. Raises `Undeliverable`."""
    try:
        return head.unpack_from(payload)
    except error as reason:
        raise Undeliverable(f"a frame that cannot be read: {reason}") from None
