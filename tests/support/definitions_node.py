"""A node without connections for definitions, and the way to import some into it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from manual_clock import ManualClock

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.access.access_control import AccessControl, create_defaults
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.node import Node, default_server_properties
from warren.core.ports import Clock, MetadataStore
from warren.core.resources.alarms import Alarms
from warren.mgmt.definitions.export import Document, export_all, export_vhost
from warren.mgmt.definitions.load import Imported, import_definitions


def new_node(
    *, empty: bool = False, store: MetadataStore | None = None, clock: Clock | None = None
) -> Node:
    """A node as it is after its first start; `empty` without a user and a virtual host."""
    metadata = VolatileMetadataStore() if store is None else store
    if not empty:
        create_defaults(metadata, random_bytes=Random(1).randbytes)
    return Node(
        "warren@test",
        clock=ManualClock() if clock is None else clock,
        codec=AmqpContentCodec(),
        metadata=metadata,
        access=AccessControl(metadata, random_bytes=Random(1).randbytes),
        alarms=Alarms("warren@test"),
        random=Random(1),
        new_token=lambda: "token",
        new_backing_queue=lambda spec: MemoryQueue(),
        server_properties=default_server_properties("0", "test"),
    )


def imports(node: Node, definitions: Any, **options: Any) -> Imported:
    """Import, and let queues and exchanges follow."""
    imported = asyncio.run(import_definitions(node, definitions, **options))
    if isinstance(node.clock, ManualClock):
        node.clock.settle()
    return imported


def exports(node: Node, *, vhost: str | None = None, for_ctl: bool = False) -> dict[str, Any]:
    """What a client reads in the end."""

    async def read() -> dict[str, Any]:
        document: Document
        if vhost is None:
            document = export_all(node, for_ctl=for_ctl)
        else:
            document = export_vhost(node, vhost)
        return {
            name: value
            if isinstance(value, str)
            else [item async for items in value for item in items]
            for name, value in document.items()
        }

    return asyncio.run(read())


def queue_item(name: str, vhost: Any = "/", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "vhost": vhost,
        "durable": True,
        "auto_delete": False,
        "arguments": {},
        **changes,
    }


def exchange_item(name: str, kind: str = "direct", **changes: Any) -> dict[str, Any]:
    return queue_item(name, **{"type": kind, "internal": False, **changes})


def binding_item(source: str, destination: str, **changes: Any) -> dict[str, Any]:
    return {
        "source": source,
        "vhost": "/",
        "destination": destination,
        "destination_type": "queue",
        "routing_key": "key",
        "arguments": {},
        **changes,
    }


def policy_item(**changes: Any) -> dict[str, Any]:
    return {
        "vhost": "/",
        "name": "short",
        "pattern": "^q",
        "definition": {"max-length": 5},
        "priority": 0,
        "apply-to": "queues",
        **changes,
    }


class TickingClock(ManualClock):
    """A millisecond goes by whenever somebody looks."""

    def now(self) -> float:
        self._now += 0.001
        return self._now


def turns_of_another_task(work: Callable[[], Any]) -> int:
    """How often the loop serves somebody else while the coroutine that `work` makes runs."""

    async def run() -> int:
        turns = 0
        running = asyncio.ensure_future(work())
        while not running.done():
            await asyncio.sleep(0)
            turns += 1
        running.result()
        return turns

    return asyncio.run(run())
