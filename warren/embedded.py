"""A real broker inside a Python process, for tests and tools.

    from warren import Broker

    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))

It runs on a thread of its own and listens on a free port of the loopback interface. Without a data
directory it keeps its definitions in memory and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import uvloop

from warren.config import Config, Listener
from warren.core.node import Node
from warren.core.ports import Commit
from warren.faults import NodeFailed
from warren.node import RunningNode

T = TypeVar("T")

START_TIMEOUT_S = 30.0


class Broker:
    """One node. `options` are fields of `warren.config.Config`, such as `heartbeat_s=10`.

    It answers HTTP only where `http_port` says so; 0 picks a free one.
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        port: int = 0,
        http_port: int | None = None,
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

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._running = await RunningNode.start(self._config)
        self._started.set()
        stopped = asyncio.ensure_future(self._stop.wait())
        failed = asyncio.ensure_future(self._running.faults.happened.wait())
        await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        failed.cancel()
        await self._running.stop()
        if self._running.faults.first is not None:
            self._failure = NodeFailed(self._running.faults.first)
