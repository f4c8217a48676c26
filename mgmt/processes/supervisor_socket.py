"""The supervisor's answers to its processes: the store of definitions, and the processes' states.

Only the broker's own user may open the socket, and its path may have any length.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
from aiohttp import web

from warren.mgmt.processes.states import PATH, ProcessStatus
from warren.mirror.definitions.key_gateway import REQUEST_BYTES_MAX, KeyGateway

BACKLOG = 100
GOODBYE_S = 0.5
"""Time for requests to end when the supervisor stops; watches never end by themselves."""


class SupervisorSocket:
    """Made by `open`. `gateway` is None in a cluster, whose definitions are in etcd."""

    def __init__(self, runner: web.AppRunner, server: asyncio.Server, path: Path) -> None:
        self._runner = runner
        self._server = server
        self._path = path

    @classmethod
    async def open(
        cls,
        path: Path,
        gateway: KeyGateway | None,
        statuses: Callable[[], Sequence[ProcessStatus]],
    ) -> Self:
        """Listen at the socket. Raises OSError."""
        app = web.Application(client_max_size=REQUEST_BYTES_MAX)
        if gateway is not None:
            gateway.add_to(app)

        async def say(request: web.Request) -> web.Response:
            body = msgspec.json.encode(statuses())
            return web.Response(body=body, content_type="application/json")

        app.router.add_get(PATH, say)
        runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=GOODBYE_S
        )
        await runner.setup()
        assert runner.server is not None
        try:
            server = await _listen(path, runner.server)
        except BaseException:
            await runner.cleanup()
            raise
        return cls(runner, server, path)

    async def close(self) -> None:
        self._server.close()
        await self._runner.cleanup()
        # What stays on a file system that takes no changes is removed by the next start.
        with suppress(OSError):
            self._path.unlink()


async def _listen(path: Path, factory: Callable[[], asyncio.Protocol]) -> asyncio.Server:
    path.unlink(missing_ok=True)
    # The directory's path may be longer than the path of a socket may be.
    directory_fd = os.open(path.parent, os.O_PATH)
    before = os.umask(0o177)
    try:
        return await asyncio.get_running_loop().create_unix_server(
            factory, f"/proc/self/fd/{directory_fd}/{path.name}", backlog=BACKLOG
        )
    finally:
        os.umask(before)
        os.close(directory_fd)
