"""A real broker inside a Python process, for tests and tools.

    from warren import Broker

    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))

It runs on a thread of its own and listens on a free port of the loopback interface. Without a data
directory it keeps its definitions in memory and leaves nothing behind.

For tests it says what queues hold (`queue`, `wait_until`) and does on command what brokers do on
bad days: loses connections, keeps confirms to itself, refuses and blocks publishers, restarts,
and lets hours pass at once (docs/testing-with-warren.md).
"""

from __future__ import annotations

import asyncio
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

from warren.amqp.connection import Connection
from warren.clock import LoopClock, MovableClock
from warren.config import Config, Listener
from warren.core.node import Node
from warren.core.ports import Commit
from warren.core.resources.alarms import Resource
from warren.faults import NodeFailed
from warren.node import RunningNode

T = TypeVar("T")

START_TIMEOUT_S = 30.0
WAIT_S = 10.0
"""How long `wait_until` waits unless it is told."""

LOOK_S = 0.005

REFUSING = "warren-refuses"
"""The policy by which a queue takes no message."""


class QueueState(NamedTuple):
    """What a queue holds at a moment: ready messages, messages that consumers have and have not
    acknowledged, and how many consumers it has."""

    ready: int
    unacked: int
    consumers: int


class Broker:
    """One node. `options` are fields of `warren.config.Config`, such as `heartbeat_s=10`.

    It answers HTTP only where `http_port` says so; 0 picks a free one. With `movable_clock` tests
    may `advance` its clock.
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        port: int = 0,
        http_port: int | None = None,
        movable_clock: bool = False,
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
        self._new_clock = MovableClock if movable_clock else LoopClock
        self._clock: LoopClock
        self._started = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._running: RunningNode

    def start(self) -> Self:
        """Start and return when connections are accepted. Raises what starting raised."""
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
        """Why the broker did not start, or stopped by itself: `warren.faults.NodeFailed`."""
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
        """Where the HTTP API is, if `http_port` was given."""
        assert self._running.management is not None
        return self._running.management.http_ports[0]

    @property
    def http_url(self) -> str:
        """The address of the management pages."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def tls_port(self) -> int:
        """The first TLS listener's port, where one is configured."""
        return self._running.tls_ports[0]

    @property
    def url(self) -> str:
        """The default virtual host, as the default user."""
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

    # What tests look at

    def queue(self, name: str, *, vhost: str = "/") -> QueueState | None:
        """What a queue holds now; None if it is not there."""

        def look(node: Node) -> QueueState | None:
            queue = node.vhosts[vhost].queues.get(name)
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
        """Wait until a queue holds exactly so much, or `condition()` is true.

        Raises TimeoutError, with what the queue holds instead.
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

    # What may happen to clients

    def close_connections(self, reason: str = "closed by a test") -> None:
        """Close all client connections in order: clients get connection.close with 320."""

        def close(node: Node) -> None:
            for connection in _connections(node):
                connection.force_close(reason)

        self.call(close)

    def lose_connections(self) -> None:
        """End the sockets of all clients without a word, as a network does that breaks."""

        def lose(node: Node) -> None:
            for connection in _connections(node):
                connection.lose()

        self.call(lose)

    @contextmanager
    def holding_confirms(self) -> Iterator[None]:
        """Confirm no publish; what came meanwhile is confirmed afterwards."""

        def hold(node: Node) -> None:
            node.holds_confirms = True

        def release(node: Node) -> None:
            node.holds_confirms = False
            for connection in _connections(node):
                connection.request_flush()

        self.call(hold)
        try:
            yield
        finally:
            self.call(release)

    @contextmanager
    def refusing_publishes(self, pattern: str = ".*", *, vhost: str = "/") -> Iterator[None]:
        """Queues whose names match take no message: publishers with confirms get `basic.nack`.

        It is done by a policy, and other policies do not count for these queues meanwhile.
        """
        definition = {"max-length": 0, "overflow": "reject-publish"}
        self.set_policy(REFUSING, pattern, definition, vhost=vhost, priority=2**31)
        try:
            yield
        finally:
            self.clear_policy(REFUSING, vhost=vhost)

    @contextmanager
    def blocking_publishers(self) -> Iterator[None]:
        """Memory is short: whoever publishes gets `connection.blocked` and is not read from."""
        where = "a test"
        self.call(lambda node: node.alarms.report(Resource.MEMORY, True, where))
        try:
            yield
        finally:
            self.call(lambda node: node.alarms.report(Resource.MEMORY, False, where))

    def restart(self) -> None:
        """Stop and start again, on the same ports. Without a data directory everything is gone."""
        running = self._running
        http_ports = running.management.http_ports if running.management is not None else []
        self.stop()
        listeners = tuple(Listener(self.host, port) for port in running.amqp_ports)
        http = tuple(Listener(self.host, port) for port in http_ports)
        self._config = replace(self._config, amqp_listeners=listeners, http_listeners=http)
        self.start()

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once: messages and queues expire, timeouts happen.

        Only with `movable_clock`.
        """
        clock = self._clock
        if not isinstance(clock, MovableClock):
            raise RuntimeError("only Broker(movable_clock=True) can be set forward")

        def advance(node: Node) -> None:
            for connection in _connections(node):
                # Its client could not send heartbeats in that time.
                connection.heartbeat.heard = True
            clock.advance(seconds)

        self.call(advance)

    # What tests set up most

    def add_vhost(self, name: str) -> None:
        """A virtual host in which the default user may do everything."""
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


def _connections(node: Node) -> list[Connection]:
    return [client for client in node.clients if isinstance(client, Connection)]
