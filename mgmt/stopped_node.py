"""A node after `ctl stop_app`: its process, the lock on its data directory and the control socket.

It serves no clients. The command line can look at it, start it again, reset it and have it join a
cluster; every other request is answered that the node has to be started first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from warren import __version__
from warren.config import Config
from warren.core.log_line import log_event, log_fault
from warren.leaving import expect_may_join, leave_for_good
from warren.mgmt.http.listeners import Audience, HttpListeners, ProtocolFactory
from warren.mgmt.rabbitmq_version import RABBITMQ_VERSION
from warren.node_refused import ClusterRefused
from warren.persist.disk.data_directory import DataDirectory

log = logging.getLogger("warren.node")

SOCKET = "control.sock"

NOT_RUNNING = "this command requires the node to be running. Start it with `warren ctl start_app`"


ONE_OF_SEVERAL = (
    "this node is one of the processes of a broker, which cannot leave it or join others by itself."
    " To begin anew, stop the broker and start it with an empty data directory"
)


class StoppedNode:
    """A stopped node, from `open` to `close`.

    `ended` is set when the node is to start, or its process to end.
    """

    def __init__(self, config: Config, name: str, directory: DataDirectory, failure: str) -> None:
        self.start_wanted = False
        self.ended = asyncio.Event()
        self._config = config
        self._name = name
        self._directory = directory
        self._failure = failure
        self._runner: web.AppRunner | None = None
        self._listeners = HttpListeners(self._server)
        self._busy = asyncio.Lock()

    @classmethod
    async def open(cls, config: Config, name: str, failure: str = "") -> StoppedNode:
        """Lock the directory and listen. `failure` is why the last start failed.

        Raises `DataDirectoryRefused`, OSError.
        """
        assert config.data_dir is not None
        stopped = cls(config, name, DataDirectory.open(config.data_dir), failure)
        directory_fd = os.open(config.data_dir, os.O_PATH)
        try:
            # The directory's path may be longer than the path of a socket may be.
            await stopped._listeners.listen_locally(Path(f"/proc/self/fd/{directory_fd}/{SOCKET}"))
        except BaseException:
            stopped._directory.close()
            raise
        finally:
            os.close(directory_fd)
        return stopped

    async def close(self) -> None:
        """Release everything, after the request that is under way."""
        async with self._busy:
            self._listeners.stop()
            if self._runner is not None:
                await self._runner.cleanup()
            # What stays on a file system that takes no changes is removed by the next start.
            with suppress(OSError):
                (self._directory.path / SOCKET).unlink()
            self._directory.close()

    async def _server(self) -> Callable[[Audience], Awaitable[ProtocolFactory]]:
        app = web.Application()
        app.router.add_get("/api/overview", _answering(self._overview))
        app.router.add_get("/api/control/status", _answering(self._status))
        app.router.add_get("/api/control/app", _answering(self._state))
        app.router.add_post("/api/control/app/start", _answering(self._start))
        app.router.add_post("/api/control/app/stop", _answering(self._state))
        app.router.add_post("/api/control/stop", _answering(self._stop))
        app.router.add_post("/api/control/reset", _answering(self._reset))
        app.router.add_post("/api/control/join", _answering(self._join))
        app.router.add_route("*", "/{rest:.*}", _answering(self._refuse))
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=1.0
        )
        await self._runner.setup()

        async def protocols(audience: Audience) -> ProtocolFactory:
            assert self._runner is not None and self._runner.server is not None
            return self._runner.server

        return protocols

    # Answers

    async def _overview(self, body: dict[str, Any]) -> Any:
        return {"node": self._name}

    async def _state(self, body: dict[str, Any]) -> Any:
        if self.start_wanted:
            # The failure of the last start says nothing of this one.
            return {"state": "starting", "failure": ""}
        return {"state": "stopped", "failure": self._failure}

    async def _status(self, body: dict[str, Any]) -> Any:
        """The fields of a running node's status; zero or empty where a stopped node has none."""
        config = self._config
        return {
            "node": self._name,
            "cluster_name": self._name,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": "Warren",
            "product_version": __version__,
            "erlang_version": f"Python {platform.python_version()}",
            "crypto_lib_version": ssl.OPENSSL_VERSION,
            "release_series_support_status": "supported",
            "os": platform.system(),
            "pid": os.getpid(),
            "uptime": 0,
            "run_queue": 0,
            "net_ticktime": 60,
            "processes": {"used": 0, "limit": 0},
            "is_under_maintenance": False,
            "active_plugins": [],
            "enabled_plugin_file": "",
            "data_directory": str(self._directory.path.absolute()),
            "raft_data_directory": "",
            "config_files": [] if config.config_file is None else [str(config.config_file)],
            "log_files": [str(config.log_file or "<stderr>")],
            "alarms": [],
            "memory": {"total": {"erlang": 0, "rss": 0, "allocated": 0}},
            "vm_memory_calculation_strategy": "rss",
            "vm_memory_high_watermark_setting": {"absolute": 0},
            "vm_memory_high_watermark_limit": 0,
            "file_descriptors": dict.fromkeys(
                ("total_used", "total_limit", "sockets_used", "sockets_limit"), 0
            ),
            "disk_free": None,
            "disk_free_limit": 0,
            "totals": dict.fromkeys(("connection_count", "queue_count", "virtual_host_count"), 0),
            "listeners": [],
            "storage": None,
        }

    async def _refuse(self, body: dict[str, Any]) -> Any:
        raise _Refused(NOT_RUNNING)

    async def _start(self, body: dict[str, Any]) -> Any:
        self.start_wanted = True
        asyncio.get_running_loop().call_soon(self.ended.set)
        return {}

    async def _stop(self, body: dict[str, Any]) -> Any:
        asyncio.get_running_loop().call_soon(self.ended.set)
        return {"pid": os.getpid()}

    async def _reset(self, body: dict[str, Any]) -> Any:
        if self._config.process is not None:
            raise _Refused(ONE_OF_SEVERAL)
        async with self._busy:
            options = self._config.cluster
            if options is not None and not body.get("force"):
                try:
                    await leave_for_good(options, self._name, self._directory)
                except ClusterRefused as refusal:
                    raise _Refused(str(refusal)) from refusal
            kept = [SOCKET, *(path.name for path in self._files_of_the_user())]
            await asyncio.to_thread(self._directory.begin_anew, kept)
            log_event(log, logging.WARNING, "node_reset", node=self._name)
            return {}

    def _files_of_the_user(self) -> list[Path]:
        """Files in the data directory that the user put there, not the node."""
        config = self._config
        secret = config.cluster.secret_file if config.cluster is not None else None
        named = (config.config_file, config.log_file, config.load_definitions, secret)
        directory = self._directory.path.absolute()
        return [path for path in named if path is not None and path.absolute().parent == directory]

    async def _join(self, body: dict[str, Any]) -> Any:
        if self._config.process is not None:
            raise _Refused(ONE_OF_SEVERAL)
        async with self._busy:
            try:
                already = await expect_may_join(
                    self._config.cluster, self._name, self._directory, str(body.get("node"))
                )
            except ClusterRefused as refusal:
                raise _Refused(str(refusal)) from refusal
            return {"already_member": already}


class _Refused(Exception):
    """The request is refused; the text says why."""


def _answering(
    do: Callable[[dict[str, Any]], Awaitable[Any]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(http: web.Request) -> web.Response:
        try:
            data = await http.read()
            said = await do(msgspec.json.decode(data, type=dict[str, Any]) if data else {})
            status = 200
        except (_Refused, msgspec.MsgspecError) as refusal:
            status, said = 503, {"error": "app_not_running", "reason": str(refusal)}
        except Exception:
            log_fault(log, "request_failed", method=http.method, path=http.path)
            status, said = 500, {"error": "failed", "reason": "the log of the node says why"}
        body = msgspec.json.encode(said)
        return web.Response(status=status, body=body, content_type="application/json")

    return answer
