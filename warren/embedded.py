"""A real broker inside a Python process, for tests and tools.

    from warren import Broker

    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))

The broker runs on a thread of its own and listens on a free port of the loopback interface. Without
a data directory it keeps its definitions in memory and leaves nothing behind.

Tests can look into its queues (`queue`, `wait_until`, `messages`) and cause what clients must cope
with: lost connections, confirms that do not come, refused and blocked publishers, restarts, and
hours that pass at once (docs/testing-with-warren.md).
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote

import uvloop
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from warren.amqp.connection import Connection
from warren.amqp.peer import client_name
from warren.clock import LoopClock, MovableClock
from warren.config import Config, Listener
from warren.core.messages.message import Message
from warren.core.node import Node
from warren.core.patterns.matcher import Matcher
from warren.core.patterns.pattern import compile_pattern
from warren.core.ports import Commit
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_type import STREAM
from warren.core.resources.alarms import Resource
from warren.faults import NodeFailed
from warren.node import RunningNode

T = TypeVar("T")

START_TIMEOUT_S = 30.0
WAIT_S = 10.0
"""How long `wait_until` waits by default."""

LOOK_S = 0.005

READ_BYTES_MAX = 1 << 30
"""The most octets of bodies that `messages` reads from each level of a queue."""


class BrokerFaults(NamedTuple):
    """Faults of a broker from its start on, and after each `restart`: queues of the virtual host
    `/` whose names match `refuse_publishes` refuse publishes, no publish is confirmed, or
    publishers are blocked."""

    refuse_publishes: str | None = None
    hold_confirms: bool = False
    block_publishers: bool = False


class QueuedMessage(NamedTuple):
    """A message as it stands in a queue."""

    body: bytes
    exchange: str
    routing_key: str
    properties: Basic.Properties
    redelivered: bool


class QueueState(NamedTuple):
    """Counts of a queue at one moment: ready messages, messages delivered and not acknowledged, and
    consumers."""

    ready: int
    unacked: int
    consumers: int


NO_FAULTS = BrokerFaults()


class Broker:
    """One node. `options` are fields of `warren.config.Config`, such as `heartbeat_s=10`.

    It serves HTTP only if `http_port` is given; 0 picks a free port. With `movable_clock` tests may
    `advance` its clock. `faults` begin with the broker; its methods cause others.
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        port: int = 0,
        http_port: int | None = None,
        movable_clock: bool = False,
        faults: BrokerFaults = NO_FAULTS,
        **options: Any,
    ) -> None:
        http = () if http_port is None else (Listener("127.0.0.1", http_port),)
        settings = {
            "amqp_listeners": (Listener("127.0.0.1", port),),
            "http_listeners": http,
            "control_socket": False,
            "data_dir": None if data_dir is None else Path(data_dir),
            "node_name": "warren@localhost",
            **options,
        }
        self._config = Config(**settings)
        # Faults that are on now: virtual hosts and patterns of queues that refuse publishes, how
        # many callers hold confirms, and how many block publishers.
        self._refusing: list[tuple[str, Matcher]] = []
        if faults.refuse_publishes is not None:
            self._refusing.append(("/", compile_pattern(faults.refuse_publishes)))
        self._holding = int(faults.hold_confirms)
        self._blocking = int(faults.block_publishers)
        self._new_clock = MovableClock if movable_clock else LoopClock
        self._clock: LoopClock
        self._started = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._running: RunningNode

    def start(self) -> Self:
        """Start; return when connections are accepted. Raises the exception that prevents it."""
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError("this broker is running already")
        self._started.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="warren-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the broker did not start within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        self._begin_faults()
        return self

    def stop(self) -> None:
        """Stop as on SIGTERM; returns when the port is closed."""
        if self._thread is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # The loop is closed: it has stopped by itself.
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._thread = None

    @property
    def failure(self) -> BaseException | None:
        """Why the broker did not start, or `warren.faults.NodeFailed` if it stopped by itself."""
        return self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return self._running.amqp_ports[0]

    @property
    def http_port(self) -> int:
        """The port of the HTTP API. The broker must have an `http_port`."""
        assert self._running.management is not None
        return self._running.management.http_ports[0]

    @property
    def http_url(self) -> str:
        """The address of the management pages."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def tls_port(self) -> int:
        """The port of the first TLS listener. One must be configured."""
        return self._running.tls_ports[0]

    @property
    def url(self) -> str:
        """An AMQP URL for the default virtual host and the default user."""
        return self.url_for()

    def url_for(
        self, vhost: str | None = None, user: str | None = None, password: str | None = None
    ) -> str:
        """An AMQP URL for a virtual host and a user."""
        config = self._config
        name = quote(config.default_user if user is None else user, safe="")
        secret = quote(config.default_pass if password is None else password, safe="")
        where = quote(config.default_vhost if vhost is None else vhost, safe="")
        return f"amqp://{name}:{secret}@{self.host}:{self.port}/{where}"

    def call(self, function: Callable[[Node], T]) -> T:
        """Run a function on the broker's thread with its node, and return what it returns."""

        async def run() -> T:
            return function(self._running.node)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    # Looking into queues

    def queue(self, name: str, *, vhost: str = "/") -> QueueState | None:
        """The counts of a queue now; None if it does not exist."""

        def look(node: Node) -> QueueState | None:
            queue = _queue_of(node, vhost, name)
            if queue is None:
                return None
            return QueueState(len(queue), queue.unacked, queue.consumer_total)

        return self.call(look)

    def wait_until(
        self,
        condition: Callable[[], object] | None = None,
        *,
        queue: str | None = None,
        vhost: str = "/",
        ready: int | None = None,
        unacked: int | None = None,
        consumers: int | None = None,
        timeout_s: float = WAIT_S,
    ) -> None:
        """Wait until a queue has exactly these counts, or `condition()` is true.

        Raises TimeoutError, which says what the queue holds instead.
        """
        if (condition is None) == (queue is None):
            raise ValueError("give a condition or the name of a queue")
        wanted = {"ready": ready, "unacked": unacked, "consumers": consumers}
        wanted = {name: count for name, count in wanted.items() if count is not None}

        def holds() -> object:
            if condition is not None:
                return condition()
            assert queue is not None
            state = self.queue(queue, vhost=vhost)
            return state is not None and wanted.items() <= state._asdict().items()

        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() >= deadline:
                if queue is None:
                    raise TimeoutError(f"the condition was not true within {timeout_s:g} s")
                state = self.queue(queue, vhost=vhost)
                raise TimeoutError(f"queue {queue!r} is {state}, not {wanted}")
            time.sleep(LOOK_S)

    def messages(self, queue: str, *, vhost: str = "/") -> list[QueuedMessage]:
        """The ready messages of a queue, from its head on. They stay in the queue unchanged.

        Raises `LookupError` if the queue does not exist.
        """

        def look(node: Node) -> list[QueuedMessage]:
            found = _queue_of(node, vhost, queue)
            if found is None:
                raise LookupError(f"there is no queue {queue!r} in virtual host {vhost!r}")
            return [
                _queued(message)
                for level in reversed(found.levels)
                for message in level.peek(0, len(found), READ_BYTES_MAX).messages
            ]

        return self.call(look)

    # Faults that clients meet

    def close_connections(
        self, reason: str = "closed by a test", *, name: str | None = None
    ) -> None:
        """Close client connections properly: clients get connection.close with 320.

        Closes all connections, or those of clients that have `name` as their `connection_name`.
        """

        def close(node: Node) -> None:
            for connection in _connections(node, name):
                connection.force_close(reason)

        self.call(close)

    def lose_connections(self, *, name: str | None = None) -> None:
        """Close the sockets of clients without connection.close, as if the network broke: those of
        all clients, or of clients that have `name` as their `connection_name`."""

        def lose(node: Node) -> None:
            for connection in _connections(node, name):
                connection.lose()

        self.call(lose)

    @contextmanager
    def holding_confirms(self) -> Iterator[None]:
        """Confirm no publish inside the block; its publishes are confirmed afterwards."""
        self._hold_confirms(1)
        try:
            yield
        finally:
            self._hold_confirms(-1)

    def _hold_confirms(self, more: int) -> None:
        def hold(node: Node) -> None:
            self._holding += more
            node.holds_confirms = self._holding > 0
            for connection in _connections(node):
                connection.request_flush()

        self.call(hold)

    @contextmanager
    def refusing_publishes(self, pattern: str = ".*", *, vhost: str = "/") -> Iterator[None]:
        """Queues whose names match refuse messages: publishers with confirms get `basic.nack`.

        Messages in these queues stay there. Streams still accept messages.
        """
        refusing = (vhost, compile_pattern(pattern))
        self._refusing.append(refusing)
        self._refuse_by_now(vhost)
        try:
            yield
        finally:
            self._refusing.remove(refusing)
            self._refuse_by_now(vhost)

    def _refuse_by_now(self, vhost: str) -> None:
        """Make the queues of a virtual host refuse publishes, or accept them again."""

        def follow(node: Node) -> None:
            node.policies.override = self._refuses
            if vhost in node.vhosts:
                node.vhosts[vhost].apply_policies()

        self.call(follow)

    def _refuses(self, vhost: str, name: str, settings: QueueSettings) -> QueueSettings:
        if settings.type is STREAM or not any(
            where == vhost and pattern.search(name) for where, pattern in self._refusing
        ):
            return settings
        return replace(settings, max_length=0, overflow="reject-publish")

    @contextmanager
    def blocking_publishers(self) -> Iterator[None]:
        """Raise the memory alarm: publishers get `connection.blocked` and are not read from."""
        self._block_publishers(1)
        try:
            yield
        finally:
            self._block_publishers(-1)

    def _block_publishers(self, more: int) -> None:
        def block(node: Node) -> None:
            self._blocking += more
            node.alarms.report(Resource.MEMORY, self._blocking > 0, "a test")

        self.call(block)

    def _begin_faults(self) -> None:
        """Apply the faults given at construction, and those that a restart has interrupted."""
        for vhost in {where for where, _ in self._refusing}:
            self._refuse_by_now(vhost)
        if self._holding:
            self._hold_confirms(0)
        if self._blocking:
            self._block_publishers(0)

    def restart(self) -> None:
        """Stop and start again on the same ports. Without a data directory all data is lost."""
        running = self._running
        http_ports = running.management.http_ports if running.management is not None else []
        self.stop()
        listeners = tuple(Listener(self.host, port) for port in running.amqp_ports)
        http = tuple(Listener(self.host, port) for port in http_ports)
        self._config = replace(self._config, amqp_listeners=listeners, http_listeners=http)
        self.start()

    def advance(self, seconds: float) -> None:
        """Set the clock forward: messages and queues expire, timeouts happen.

        Works only with `movable_clock`.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"a clock is set forward by seconds, not by {seconds}")
        clock = self._clock
        if not isinstance(clock, MovableClock):
            raise RuntimeError("only Broker(movable_clock=True) can be set forward")

        def advance(node: Node) -> None:
            for connection in _connections(node):
                # Its client could not send heartbeats in that time.
                connection.heartbeat.heard = True
            clock.advance(seconds)

        self.call(advance)

    # Common setup

    def add_vhost(self, name: str) -> None:
        """Add a virtual host in which the default user may do everything."""
        self._change(lambda node: node.add_vhost(name))
        self.set_permissions(self._config.default_user, name)

    def delete_vhost(self, name: str) -> None:
        self._change(lambda node: node.delete_vhost(name))

    def add_user(self, name: str, password: str, tags: tuple[str, ...] = ()) -> None:
        self._change(lambda node: node.access.add_user(name, password, tags))

    def delete_user(self, name: str) -> None:
        self._change(lambda node: node.access.delete_user(name))

    def set_permissions(
        self,
        user: str,
        vhost: str = "/",
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
    ) -> None:
        self._change(lambda node: node.access.set_permissions(user, vhost, configure, write, read))

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        *,
        vhost: str = "/",
        priority: float = 0,
        apply_to: str = "all",
        operator: bool = False,
    ) -> None:
        self._change(
            lambda node: node.policies.set(
                vhost, name, pattern, definition, priority, apply_to, operator=operator
            )
        )

    def clear_policy(self, name: str, *, vhost: str = "/", operator: bool = False) -> None:
        self._change(lambda node: node.policies.clear(vhost, name, operator=operator))

    def _change(self, function: Callable[[Node], Commit]) -> None:
        """Make a change and wait until it is durable."""
        durable = threading.Event()

        def change(node: Node) -> None:
            function(node).then(durable.set)

        self.call(change)
        durable.wait()

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            self._failure = error
            if self._started.is_set():
                raise
        finally:
            self._started.set()

    def _make_clock(self, loop: asyncio.AbstractEventLoop) -> LoopClock:
        self._clock = self._new_clock(loop)
        return self._clock

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._running = await RunningNode.start(self._config, new_clock=self._make_clock)
        self._started.set()
        stopped = asyncio.ensure_future(self._stop.wait())
        failed = asyncio.ensure_future(self._running.faults.happened.wait())
        await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        failed.cancel()
        await self._running.stop()
        if self._running.faults.first is not None:
            self._failure = NodeFailed(self._running.faults.first)


def _connections(node: Node, name: str | None = None) -> list[Connection]:
    """The connections of all clients, or of clients that have this `connection_name`."""
    return [
        client
        for client in node.clients
        if isinstance(client, Connection)
        and (name is None or client_name(client.client_properties) == name)
    ]


def _queue_of(node: Node, vhost: str, name: str) -> LocalQueue | None:
    """The queue of this name; an embedded broker is one node, and has all its queues."""
    queue = node.vhosts[vhost].queues.get(name)
    assert queue is None or isinstance(queue, LocalQueue)
    return queue


def _queued(message: Message) -> QueuedMessage:
    envelope = message.envelope
    header = ContentHeader()
    header.unmarshal(envelope.header)
    return QueuedMessage(
        message.body,
        envelope.exchange,
        envelope.routing_key,
        header.properties,
        message.redelivered,
    )
