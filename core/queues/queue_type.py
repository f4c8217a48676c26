"""The types of queues there are, as clients name them.

A queue has the type its argument `x-queue-type` says; without one it is a classic queue.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from warren.core.field import Field, Table, longstr

QUEUE_TYPE = "x-queue-type"


class QueueType(StrEnum):
    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"

    @property
    def module(self) -> str:
        """The name of the type in RabbitMQ's reply texts and metrics."""
        return f"rabbit_{self}_queue"


DEFAULT_TYPES = ("classic", "quorum", "stream")
"""The default types that a virtual host may have."""

CLASSIC = QueueType.CLASSIC
QUORUM = QueueType.QUORUM
STREAM = QueueType.STREAM

MEMBER_TYPES = frozenset({QUORUM, STREAM})
"""Queues that name the nodes which are to have them; policies name those of classic queues."""

_TYPES = {b"quorum": QUORUM, b"stream": STREAM}


def type_of(arguments: Table) -> QueueType:
    """The type of a queue with these arguments; classic where they name none there is."""
    field = arguments.get(QUEUE_TYPE)
    # A field of another kind may be a list or a table, which no dictionary looks up.
    return _TYPES.get(field.value, CLASSIC) if field and field.kind == "S" else CLASSIC


def majority_of(members: Collection[str]) -> int:
    """How many members of a quorum queue or a stream are to have a publish before it is
    confirmed."""
    return len(members) // 2 + 1


def with_default_type(
    arguments: Table,
    default: str | None,
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
) -> Table:
    """The arguments of a declaration, with the default type of the virtual host where it counts.

    It counts for what lasts only: a queue that is transient, exclusive or deleted with its last
    consumer is a classic queue unless it says otherwise.
    """
    lasts = durable and not exclusive and not auto_delete
    # Definitions say `undefined` where there is none.
    if default not in DEFAULT_TYPES or not lasts or QUEUE_TYPE in arguments:
        return arguments
    assert default is not None
    kind: Field = longstr(default)
    return {**arguments, QUEUE_TYPE: kind}
