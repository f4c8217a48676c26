"""The HTTP server: it leads each request to its handler, and gives every answer its form.

A request is authenticated, its right to the endpoint checked, and the handler answers it; errors of
any kind become JSON. The network and the command line's control socket have the same endpoints; a
request through the socket may do everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.typedefs import Middleware

from warren.core.access.access_control import User
from warren.core.errors import BrokerError
from warren.core.field import printable
from warren.core.log_line import log_fault
from warren.mgmt.http.caller import (
    Caller,
    basic_credentials,
    local_caller,
    log_in,
    no_credentials,
)
from warren.mgmt.http.endpoint import Endpoint, HttpReply, JsonLines, Right
from warren.mgmt.http.errors import ApiError, LoginFailed, from_broker
from warren.mgmt.http.listeners import Audience, ProtocolFactory
from warren.mgmt.http.request import BODY_BYTES_MAX, ApiRequest
from warren.mgmt.http.sites import check_site
from warren.mgmt.managed_node import ManagedNode

log = logging.getLogger("warren.http")
protocol_log = logging.getLogger("warren.http.protocol")


def _is_fault(record: logging.LogRecord) -> bool:
    """Whether what aiohttp reports is a fault of the server.

    Input that is not HTTP is answered with 400; and a connection may have ended before its answer
    is written: the client has left, or the node pauses. To uvloop, that is a RuntimeError.
    """
    error = record.exc_info[1] if record.exc_info else None
    is_closed = isinstance(error, RuntimeError) and "the handler is closed" in str(error)
    return not (isinstance(error, BadHttpMessage | ConnectionError) or is_closed)


protocol_log.addFilter(_is_fault)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Routes: TypeAlias = Mapping[str, Handler]
LogIn: TypeAlias = Callable[[web.Request, tuple[str, str]], Caller]

API = "/api"

PAUSED_HEADER = "Warren-Paused"
"""The header that a paused node has in every answer. It says why the node has paused, and that the
answer may be out of date."""

PAUSED_CHANGES = ("/login", "/control/stop", "/control/app/stop")
"""Besides reading, the requests that a paused node accepts."""

PAUSED_REFUSES = ("/health", "/aliveness-test")
"""Paths that a paused node refuses even for reading: they ask whether it serves."""

COOKIE = "auth"
STRANGER_BYTES_MAX = 4096
"""Limit of a body from a client that has not logged in."""

COMPRESSED_FROM = 4096
"""Octets from which an answer is compressed."""

LOOPBACK = ("127.", "::1", "::ffff:127.")

SECURITY = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none';"
        " form-action 'self'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Server": "Warren",
}
ENDPOINTS_AT_ONCE = 10
"""Endpoints registered with the server before the event loop gets a turn."""

API_HEADERS = {"Cache-Control": "no-cache", "Vary": "accept, accept-encoding, origin"}


@web.middleware
async def _let_go(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer requests, and free what was to be sent to a client that has left meanwhile.

    The frames of aiohttp that the exception has passed refer to it, and its tasks would, too. The
    collector looks at such cycles hardly ever once they are old, and they hold the whole answer.
    """
    try:
        return await handler(request)
    except ConnectionError as error:
        if request.transport is not None and not request.transport.is_closing():
            raise
        error.__traceback__ = None
        # The client has gone, so this answer is never sent; aiohttp wants one.
        return web.Response()


class SiblingProcesses(Protocol):
    """The other processes of the broker (`mgmt/processes/siblings.py`)."""

    @property
    def route(self) -> str:
        """The route of requests for one of them."""
        ...

    async def forward(self, http: web.Request, /) -> web.StreamResponse:
        """Pass such a request on and answer it."""
        ...

    @property
    def as_it_came(self) -> Middleware:
        """Middleware that gives requests passed on by one of them the client's address."""
        ...

    def own(self, path: str) -> str:
        """The path at which they ask for the metrics of this process alone."""
        ...

    def metrics(self, path: str) -> Handler:
        """A handler for the metrics of all processes."""
        ...

    def path_of_one(self, path: str) -> str:
        """The path of one process's metrics, without a login."""
        ...

    def metrics_of_one(self, path: str) -> Handler:
        """A handler for the metrics of one process."""
        ...


class ManagementServer:
    """Serves the endpoints, which `endpoints` makes from the function that logs a user in.

    `pages` are routes outside the API, open to all. `metrics` are routes for monitors, or on a
    listener of their own for every client that reaches it. `probes` are open to all.
    """

    def __init__(
        self,
        managed: ManagedNode,
        endpoints: Callable[[LogIn], list[Endpoint]],
        *,
        pages: Routes,
        metrics: Routes,
        probes: Routes,
        siblings: SiblingProcesses | None = None,
    ) -> None:
        self._managed = managed
        self._runners: list[web.AppRunner] = []
        self._endpoints = endpoints(self.log_in)
        self._pages = pages
        self._metrics = metrics
        self._probes = probes
        self._siblings = siblings

    async def protocols(self, audience: Audience) -> ProtocolFactory:
        """The factory of protocols for connections to a listener of this audience."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_let_go])
        app.on_response_prepare.append(self._add_headers)
        for path, handler in self._probes.items():
            app.router.add_get(path, handler)
        if audience is Audience.METRICS:
            for path, handler in self._metrics_for(audience).items():
                app.router.add_get(path, self._unless_paused(handler))
            self._add_siblings(app, audience)
        else:
            await self._add_routes(app, audience)
        runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=protocol_log,
            keepalive_timeout=75,
            shutdown_timeout=1.0,
            # A small compressed body may be of any size when it is decompressed.
            auto_decompress=False,
        )
        await runner.setup()
        self._runners.append(runner)
        assert runner.server is not None
        return cast(ProtocolFactory, runner.server)

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    def _metrics_for(self, audience: Audience) -> Routes:
        """The routes of metrics. On listeners for clients they answer for all processes of the
        broker; sibling processes and the command line get the metrics of this process."""
        siblings = self._siblings
        if siblings is None or audience not in (Audience.NETWORK, Audience.METRICS):
            return self._metrics
        return {path: siblings.metrics(path) for path in self._metrics}

    def _add_siblings(self, app: web.Application, audience: Audience) -> None:
        """Add the routes and middleware that only a broker of several processes has."""
        siblings = self._siblings
        if siblings is None:
            return
        if audience is Audience.SIBLINGS:
            app.middlewares.append(siblings.as_it_came)
            for path, handler in self._metrics.items():
                app.router.add_get(siblings.own(path), self._unless_paused(handler))
        elif audience is Audience.NETWORK:
            app.router.add_route("*", siblings.route, siblings.forward)
        elif audience is Audience.METRICS:
            for path in self._metrics:
                app.router.add_get(siblings.path_of_one(path), siblings.metrics_of_one(path))

    async def _add_routes(self, app: web.Application, audience: Audience) -> None:
        local = audience is Audience.COMMAND_LINE
        self._add_siblings(app, audience)
        prefix = "" if local else self._managed.config.path_prefix.rstrip("/")
        for number, endpoint in enumerate(self._endpoints):
            self._add(app, prefix, endpoint, local)
            if number % ENDPOINTS_AT_ONCE == 0:
                # Each endpoint compiles two regular expressions; messages must not wait for all of
                # them.
                await asyncio.sleep(0)
        for path, handler in self._pages.items():
            app.router.add_get(path, handler)
        for path, handler in self._metrics_for(audience).items():
            app.router.add_get(path, self._for_monitors(self._unless_paused(handler), local))
        app.router.add_route("*", f"{prefix}{API}/{{rest:.*}}", self._unknown)

    def _add(self, app: web.Application, prefix: str, endpoint: Endpoint, local: bool) -> None:
        async def serve(http: web.Request) -> web.StreamResponse:
            return await self._serve(endpoint, http, local)

        path = prefix + API + _route(endpoint.path)
        app.router.add_route("*", path, serve)
        # As in RabbitMQ, a slash at the end changes nothing.
        app.router.add_route("*", f"{path}/", serve)

    def _unless_paused(self, handler: Handler) -> Handler:
        """Refuse while paused: frozen figures would pass for those of a node that serves."""

        async def serve(http: web.Request) -> web.StreamResponse:
            if self._managed.paused:
                return web.Response(status=503, text=self._managed.paused)
            return await handler(http)

        return serve

    def _for_monitors(self, handler: Handler, local: bool) -> Handler:
        async def serve(http: web.Request) -> web.StreamResponse:
            try:
                self._caller(http, Right.MONITOR, local)
            except ApiError as error:
                return _error(error, {**SECURITY, **API_HEADERS})
            return await handler(http)

        return serve

    async def _unknown(self, http: web.Request) -> web.StreamResponse:
        return _error(ApiError(404, "Object Not Found", "Not Found"), {**SECURITY, **API_HEADERS})

    async def _add_headers(self, http: web.Request, response: web.StreamResponse) -> None:
        """Add the headers that the configuration wants in every answer."""
        response.headers.update(self._managed.config.http_headers)

    # One request

    def _check_paused(self, endpoint: Endpoint, method: str) -> None:
        """Raise `ApiError` if the node has paused, and refuses such a request meanwhile."""
        paused = self._managed.paused
        looks = method == "GET" and not endpoint.path.startswith(PAUSED_REFUSES)
        if paused and not looks and endpoint.path not in PAUSED_CHANGES:
            raise ApiError(503, "node_paused", f"{paused}; until then nothing can be changed here")

    def _paused_headers(self) -> dict[str, str]:
        paused = self._managed.paused
        if not paused:
            return {}
        shown = "it serves no clients, and this is what it knew then; other nodes are not asked"
        return {PAUSED_HEADER: f"{paused}: {shown}"}

    async def _serve(
        self, endpoint: Endpoint, http: web.Request, local: bool
    ) -> web.StreamResponse:
        headers = {**SECURITY, **API_HEADERS, **self._cors(http), **self._paused_headers()}
        method = "GET" if http.method == "HEAD" else http.method
        try:
            if http.method == "OPTIONS":
                return web.Response(status=200, headers={**headers, "Allow": _allowed(endpoint)})
            handler = endpoint.methods.get(method)
            if handler is None:
                return web.Response(status=405, headers={**headers, "Allow": _allowed(endpoint)})
            if not local:
                check_site(http, self._managed.config.cors_origins)
            _check_accept(http)
            _check_encoding(http)
            right = endpoint.right_for(method)
            caller = self._caller(http, right, local)
            self._check_paused(endpoint, method)
            limit = STRANGER_BYTES_MAX if right is Right.ANYBODY else endpoint.body_bytes_max
            bounded = http.clone(client_max_size=limit)
            answer = await handler(ApiRequest(self._managed, caller, bounded))
            return await _respond(http, answer, headers)
        except ApiError as error:
            return _unchallenged(http, _error(error, headers))
        except BrokerError as error:
            return _error(from_broker(error), headers)
        except web.HTTPException as error:
            return _error(ApiError(error.status, "bad_request", error.reason), headers)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log_fault(log, "request_failed", method=http.method, path=http.path)
            return web.Response(status=500, headers=headers)

    def _caller(self, http: web.Request, right: Right, local: bool) -> Caller:
        """Authenticate the request and check its right. Raises `ApiError`."""
        if local:
            return local_caller()
        address = http.remote or ""
        loopback = address.startswith(LOOPBACK)
        if right is Right.ANYBODY:
            # Anonymous: the handler looks for credentials itself.
            return Caller(_NOBODY, address)
        credentials = _credentials(http)
        if credentials is None:
            raise no_credentials()
        caller = log_in(self._managed.node, credentials, address, loopback)
        right.check(caller)
        return caller

    def log_in(self, http: web.Request, credentials: tuple[str, str]) -> Caller:
        """Log a user in, for the endpoint of logins. Raises `ApiError`."""
        address = http.remote or ""
        loopback = address.startswith(LOOPBACK)
        return log_in(self._managed.node, credentials, address, loopback)

    def _cors(self, http: web.Request) -> dict[str, str]:
        origin = http.headers.get("Origin")
        allowed = self._managed.config.cors_origins
        if origin is None or not ("*" in allowed or origin in allowed):
            return {}
        headers = {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Credentials": "true",
            "Access-Control-Expose-Headers": "Location",
        }
        if http.method == "OPTIONS":
            headers["Access-Control-Allow-Methods"] = "HEAD, GET, PUT, POST, DELETE, OPTIONS"
            wanted = http.headers.get("Access-Control-Request-Headers")
            if wanted:
                headers["Access-Control-Allow-Headers"] = wanted
            max_age_s = self._managed.config.cors_max_age_s
            if max_age_s is not None:
                headers["Access-Control-Max-Age"] = str(max_age_s)
        return headers


_NOBODY = User("", frozenset())


def _allowed(endpoint: Endpoint) -> str:
    head = ["HEAD"] if "GET" in endpoint.methods else []
    return ", ".join([*head, *endpoint.methods, "OPTIONS"])


def _check_accept(http: web.Request) -> None:
    accept = http.headers.get("Accept", "*/*")
    if not any(kind in accept for kind in ("*/*", "json", "application/*")):
        raise ApiError(406, "", None)


def _check_encoding(http: web.Request) -> None:
    encoding = http.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise ApiError(415, "unsupported_encoding", "bodies are taken as they are, not packed")


def _credentials(http: web.Request) -> tuple[str, str] | None:
    """The login in the header, the pages' cookie, or a download's address. Raises `ApiError`."""
    kind, _, token = http.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "basic":
        return basic_credentials(token.strip())
    if kind:
        raise LoginFailed()
    cookie = http.cookies.get(COOKIE)
    if cookie is not None:
        return basic_credentials(cookie)
    if http.method == "GET" and http.path.endswith("/definitions") and "auth" in http.query:
        return basic_credentials(http.query["auth"])
    return None


async def _respond(http: web.Request, answer: Any, headers: dict[str, str]) -> web.StreamResponse:
    status = 200
    if answer is None:
        return web.Response(status=204, headers=headers)
    if isinstance(answer, HttpReply):
        status, answer, headers = answer.status, answer.body, {**headers, **answer.headers}
        if answer is None:
            return web.Response(status=status, headers=headers)
    if isinstance(answer, JsonLines):
        headers = {**headers, "Content-Type": "application/x-ndjson"}
        return await _stream(http, _lines(answer.rows), headers)
    if isinstance(answer, AsyncIterator):
        return await _stream(http, _list_pieces(answer), headers)
    if isinstance(answer, dict) and any(
        isinstance(value, AsyncIterator) for value in answer.values()
    ):
        return await _stream(http, _object_pieces(answer), headers)
    if isinstance(answer, bytes):
        body = answer
        headers.setdefault("Content-Type", "application/octet-stream")
    else:
        body = encode(answer)
        headers.setdefault("Content-Type", "application/json")
    response = web.Response(status=status, body=body, headers=headers)
    # A range refers to the octets of the file itself, so it must not be compressed.
    if len(body) >= COMPRESSED_FROM and status != 206:
        response.enable_compression()
    return response


async def _stream(
    http: web.Request, json: AsyncIterator[bytes], headers: dict[str, str]
) -> web.StreamResponse:
    """Send JSON while it is made; a short answer is sent whole."""
    pieces: list[bytes] = []
    size = 0
    headers = {"Content-Type": "application/json", **headers}
    response: web.StreamResponse | None = None
    try:
        async for piece in json:
            pieces.append(piece)
            size += len(piece)
            if size >= COMPRESSED_FROM * 16:
                if response is None:
                    response = web.StreamResponse(headers=headers)
                    if http.method == "HEAD":
                        # The answer to HEAD has no body: a client would take one for the next
                        # answer.
                        return response
                    response.enable_compression()
                    await response.prepare(http)
                await response.write(b"".join(pieces))
                pieces, size = [], 0
    except Exception as error:
        if response is None or isinstance(error, ConnectionError):
            raise
        # Half of the answer is sent; only the end of the connection can tell that it is not whole.
        log_fault(log, "request_failed", method=http.method, path=http.path)
        if http.transport is not None:
            http.transport.abort()
        raise ConnectionResetError from error
    if response is None:
        whole = web.Response(body=b"".join(pieces), headers=headers)
        if size >= COMPRESSED_FROM:
            whole.enable_compression()
        return whole
    await response.write_eof(b"".join(pieces))
    return response


async def _object_pieces(answer: dict[str, Any]) -> AsyncIterator[bytes]:
    """The JSON of an object, some values of which are long lists."""
    before = b"{"
    for key, value in answer.items():
        yield before + encode(key) + b":"
        before = b","
        if isinstance(value, AsyncIterator):
            async for piece in _list_pieces(value):
                yield piece
        else:
            yield encode(value)
    yield b"}"


async def _list_pieces(rows: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[bytes]:
    """The JSON of a long list."""
    before = b"["
    async for chunk in rows:
        if chunk:
            yield before + b",".join([encode(row) for row in chunk])
            before = b","
    yield b"]" if before == b"," else b"[]"


async def _lines(rows: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[bytes]:
    async for chunk in rows:
        yield b"".join([encode(row) + b"\n" for row in chunk])


def _unchallenged(http: web.Request, response: web.Response) -> web.Response:
    """Remove the challenge from an answer to our own pages: the browser would ask for a password
    itself, in place of the page."""
    if "X-Requested-With" in http.headers:
        response.headers.popall("WWW-Authenticate", None)
    return response


def _route(path: str) -> str:
    """The path of an endpoint as aiohttp takes it, with a pattern for each name: by default aiohttp
    lets no name in a path have braces."""
    return path.replace("}", ":[^/]+}")


def _error(error: ApiError, headers: dict[str, str]) -> web.Response:
    if error.reason is None:
        return web.Response(status=error.status, headers={**headers, **error.headers})
    body = encode({"error": error.error, "reason": error.reason})
    return web.Response(
        status=error.status,
        body=body,
        headers={**headers, "Content-Type": "application/json", **error.headers},
    )


def encode(value: Any) -> bytes:
    """JSON as it is sent. Octets that are not UTF-8 become replacement characters."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_printable(value))


def _printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {_printable(key): _printable(item) for key, item in value.items()}
        case list() | tuple():
            return [_printable(item) for item in value]
    return value


_encoder = msgspec.json.Encoder()
