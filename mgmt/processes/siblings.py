"""Reaches a certain process of a broker over HTTP, and gathers the metrics of all processes.

All processes listen at the same ports, so a client cannot choose the one that answers. A request
for `/process/2/...` is passed on to process 2, through a socket in its data directory that only the
broker's own user may open; process 2 answers as if the client had reached it directly. `/metrics`
has the lines of all processes, each with a label for its process, so no counter jumps from one
scrape to the next.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Middleware
from yarl import URL

from warren.config import ProcessConfig
from warren.core.errors import NotFound
from warren.mgmt.http.server import Handler
from warren.mgmt.metrics.exposition import CONTENT_TYPE
from warren.mgmt.metrics.merging import merged
from warren.mgmt.processes.asking import statuses
from warren.mgmt.processes.plan import directory_of
from warren.mgmt.processes.states import ProcessState

SOCKET = "http.sock"
OWN = "/own"
"""Prefix of the paths for the metrics of this process alone. They need no login, and are therefore
only served at the socket for other processes."""
ADDRESS = "Warren-Address"
"""The header of a request passed on that has the client's address."""
ROUTE = "/process/{number:[0-9]+}/{rest:.*}"

CONNECT_S = 2.0
METRICS_S = 10.0
"""Time for the metrics of another process; Prometheus waits as long by default."""
PIECE_BYTES = 1 << 16

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that are for one connection only (RFC 9110, 7.6.1)."""


class Siblings:
    """The other processes, as the HTTP server of one of them reaches them."""

    def __init__(self, process: ProcessConfig, path_prefix: str) -> None:
        self._process = process
        self._prefix = path_prefix.rstrip("/")
        self._data_dir = process.supervisor.parent.parent

    @property
    def as_it_came(self) -> Middleware:
        return _as_it_came

    def own(self, path: str) -> str:
        return OWN + path

    @property
    def route(self) -> str:
        return self._prefix + ROUTE

    async def forward(self, http: web.Request) -> web.StreamResponse:
        """Pass a request on to the process in its path, and its answer back."""
        number = int(http.match_info["number"])
        before = self._prefix + f"/process/{http.match_info['number']}/"
        rest = http.rel_url.raw_path[len(before) :]
        path = f"{self._prefix}/{rest}" if rest.startswith("api/") else f"/{rest}"
        try:
            async with (
                _ToSocket(self._socket(number)) as session,
                session.request(
                    http.method,
                    URL.build(
                        scheme="http",
                        host="process",
                        path=path,
                        query_string=http.rel_url.raw_query_string,
                        encoded=True,
                    ),
                    headers=_passed(http.headers) | {ADDRESS: http.remote or ""},
                    data=http.content if http.can_read_body else None,
                    allow_redirects=False,
                ) as answer,
            ):
                response = web.StreamResponse(status=answer.status, headers=_passed(answer.headers))
                await response.prepare(http)
                async for piece in answer.content.iter_chunked(PIECE_BYTES):
                    await response.write(piece)
                await response.write_eof()
                return response
        except (FileNotFoundError, aiohttp.ClientConnectorError):
            raise web.HTTPServiceUnavailable(text=f"process {number} is not running") from None

    def metrics(self, path: str) -> Handler:
        """A handler for the metrics of all processes, in place of those of one at this path."""

        async def answer(http: web.Request) -> web.StreamResponse:
            query = http.rel_url.raw_query_string
            texts = await self._metrics_of_all(path, query)
            return web.Response(
                body=await asyncio.to_thread(merged, texts), headers={"Content-Type": CONTENT_TYPE}
            )

        return answer

    def path_of_one(self, path: str) -> str:
        return f"/process/{{number:[0-9]+}}{path}"

    def metrics_of_one(self, path: str) -> Handler:
        """A handler for the metrics of the process in the path, on a listener for metrics."""

        async def answer(http: web.Request) -> web.StreamResponse:
            number = int(http.match_info["number"])
            text = await self._metrics_of(number, path, http.rel_url.raw_query_string)
            if text is None:
                raise web.HTTPServiceUnavailable(text=f"process {number} is not running")
            return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

        return answer

    async def _metrics_of_all(self, path: str, query: str) -> dict[int, bytes | None]:
        """Metrics by number; None if a process does not run or does not answer."""
        try:
            known = await statuses(self._process.supervisor)
        except NotFound:
            raise web.HTTPServiceUnavailable(text="the supervisor does not answer") from None
        running = [one.number for one in known if one.state is ProcessState.RUNNING]
        texts = await asyncio.gather(*(self._metrics_of(one, path, query) for one in running))
        return {one.number: None for one in known} | dict(zip(running, texts, strict=True))

    async def _metrics_of(self, number: int, path: str, query: str) -> bytes | None:
        url = URL.build(
            scheme="http", host="process", path=OWN + path, query_string=query, encoded=True
        )
        try:
            async with asyncio.timeout(METRICS_S), _ToSocket(self._socket(number)) as session:
                async with session.get(url) as answer:
                    return await answer.read() if answer.status == 200 else None
        except (OSError, TimeoutError, aiohttp.ClientError):
            return None

    def _socket(self, number: int) -> Path:
        return directory_of(self._data_dir, number) / SOCKET


@web.middleware
async def _as_it_came(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give a request that another process has passed on the address of its client.

    Such a request may not lead to what only processes ask each other, however its path is written.
    """
    resource = request.match_info.route.resource
    is_own = resource is not None and resource.canonical.startswith(f"{OWN}/")
    if is_own and ADDRESS in request.headers:
        raise web.HTTPNotFound()
    return await handler(request.clone(remote=request.headers.get(ADDRESS, "")))


class _ToSocket:
    """A session for one request through a Unix socket, whose path may exceed the system's limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._directory_fd = -1
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> aiohttp.ClientSession:
        """Raises FileNotFoundError if the socket's directory does not exist."""
        self._directory_fd = os.open(self._path.parent, os.O_PATH)
        name = f"/proc/self/fd/{self._directory_fd}/{self._path.name}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(name),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )
        return self._session

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()
        os.close(self._directory_fd)


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
