"""A request as endpoints see it: the user, the path, the query, the body."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from warren.core.errors import AccessRefused
from warren.core.field import NESTED_TOO_DEEP, nested_too_deep, to_octets
from warren.core.vhosts.topology_access import Asking
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.http.caller import Caller
from warren.mgmt.http.errors import OBJECT_CLOSED, BadRequest, NotAuthorised, ObjectNotFound

if TYPE_CHECKING:
    from warren.core.node import Node
    from warren.mgmt.managed_node import ManagedNode
    from warren.mgmt.peers import Peers

BODY_BYTES_MAX = 64 << 20
"""Octets of the largest request of all, an import of definitions."""

DEFAULT_EXCHANGE_IN_PATHS = "amq.default"

VHOST_CLOSED = "User not authorised to access virtual host"

NAME_BYTES_MAX = 255

VHOST_NOT_FOUND = "vhost_not_found"

LINE_MAX = 80
"""From this length on, a list of missing keys is written one key a line."""


class ApiRequest:
    """A request of `caller` to the node `managed`.

    `passed` means that another node passed it on; this node then answers for itself alone.
    """

    def __init__(
        self, managed: ManagedNode, caller: Caller, http: web.Request, *, passed: bool = False
    ) -> None:
        self.passed = passed
        self.managed = managed
        self.node: Node = managed.node
        self.caller = caller
        self.http = http

    @property
    def peers(self) -> Peers | None:
        """The other nodes to ask; None on a lone node, and for a request that was passed on."""
        return None if self.passed else self.managed.peers

    def name(self, part: str) -> str:
        """A part of the path, decoded. Raises `BadRequest` if the path is not UTF-8.

        Octets that are not UTF-8 would stay percent-encoded, and so stand for another name.
        """
        path = self.http.raw_path.partition("?")[0]
        try:
            unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRequest("the path should be UTF-8") from error
        return self.http.match_info[part]

    def exchange_name(self, part: str) -> str:
        name = self.name(part)
        return "" if name == DEFAULT_EXCHANGE_IN_PATHS else name

    def vhost(self) -> VirtualHost:
        """The virtual host in the path.

        Raises `ApiError` if it does not exist or the caller may not enter it.
        """
        vhost = self._vhost()
        if not self.caller.may_enter(self.node, vhost.name):
            raise NotAuthorised(VHOST_CLOSED)
        return vhost

    def vhost_of_policies(self) -> VirtualHost:
        """The virtual host in the path of a policy or a parameter.

        It differs from `vhost` only in the text of the refusal, as in RabbitMQ.
        """
        vhost = self._vhost()
        if not self.caller.may_enter(self.node, vhost.name):
            raise NotAuthorised(OBJECT_CLOSED)
        return vhost

    def seen_vhost(self) -> VirtualHost:
        """The virtual host in the path, for what a monitor may see in every virtual host.

        Raises `ApiError` if it does not exist or the caller may not see it.
        """
        vhost = self._vhost()
        if not self.caller.may_see(self.node, vhost.name):
            raise NotAuthorised(VHOST_CLOSED)
        return vhost

    def _vhost(self) -> VirtualHost:
        vhost = self.node.vhosts.get(self.name("vhost"))
        if vhost is not None:
            return vhost
        if self.http.method in ("PUT", "POST"):
            raise ObjectNotFound("not_found", VHOST_NOT_FOUND)
        raise ObjectNotFound()

    def visible_vhosts(self) -> list[VirtualHost]:
        """The virtual hosts whose contents a list shows, in the order of their names.

        They are those that the caller may enter, or only the one in the header `X-Vhost`. Raises
        `NotAuthorised` if the caller may not enter that one.
        """
        return self._vhosts(self.caller.may_enter)

    def seen_vhosts(self) -> list[VirtualHost]:
        """As `visible_vhosts`, for lists in which a monitor may see every virtual host."""
        return self._vhosts(self.caller.may_see)

    def _vhosts(self, allowed: Callable[[Node, str], bool]) -> list[VirtualHost]:
        vhosts = self.node.vhosts
        only = self.http.headers.get("X-Vhost")
        if only and not allowed(self.node, only):
            raise NotAuthorised(VHOST_CLOSED)
        return [
            vhosts[name]
            for name in sorted(vhosts)
            if (name == only if only else allowed(self.node, name))
        ]

    def check(self, vhost: str, kind: Any, name: str, permission: Any) -> None:
        """Raises `NotAuthorised`, in RabbitMQ's words, unless AMQP permissions allow it."""
        if self.caller.local:
            return
        try:
            self.node.access.check_resource(self.caller.user, vhost, kind, name, permission)
        except AccessRefused as error:
            raise NotAuthorised("Access refused.") from error

    def asking(self, vhost: VirtualHost) -> Asking:
        """The user and virtual host whose permissions count for declarations and bindings."""
        return Asking(self.node.access, None if self.caller.local else self.caller.user, vhost)

    # Query and body

    def query(self, name: str, default: str = "") -> str:
        return self.http.query.get(name, default)

    def query_flag(self, name: str) -> bool:
        return boolean(self.http.query.get(name, False))

    async def body(self) -> dict[str, Any]:
        """The JSON object in the body. Without a body, and for null, it is empty.

        Raises `BadRequest`.
        """
        data = await self.http.read()
        body = parse_json(data) if data.strip() else None
        if body is None:
            return {}
        if isinstance(body, str):
            raise BadRequest("The request body is a JSON string: was it encoded twice?")
        if not isinstance(body, dict):
            raise BadRequest("not_json")
        return body


def parse_json(data: bytes) -> Any:
    try:
        value = msgspec.json.decode(data)
    except RecursionError as error:
        raise BadRequest(NESTED_TOO_DEEP) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest("not_json") from error
    if nested_too_deep(value):
        raise BadRequest(NESTED_TOO_DEEP)
    return value


def boolean(value: Any) -> bool:
    """A flag as clients send it; RabbitMQ's own tool sends strings. Raises `BadRequest`."""
    match value:
        case True | "true":
            return True
        case False | "false":
            return False
    raise BadRequest(["not_boolean", value])


def demanded(body: dict[str, Any], *names: str) -> list[Any]:
    """The values of these names in a body. Raises `BadRequest`, which lists all missing names."""
    missing = [name for name in names if name not in body]
    if missing:
        terms = [f"{{key_missing,{name}}}" for name in missing]
        line = f"[{','.join(terms)}]"
        raise BadRequest(line if len(line) < LINE_MAX else "[" + ",\n ".join(terms) + "]")
    return [body[name] for name in names]


def check_length(name: str, kind: str) -> None:
    """Raises `BadRequest` for a name that is longer than AMQP allows."""
    octets = len(to_octets(name))
    if octets > NAME_BYTES_MAX:
        raise BadRequest(
            f"{kind} should be less than {NAME_BYTES_MAX} bytes, actually was {octets}\n"
        )


def text(body: dict[str, Any], name: str, default: str = "") -> str:
    """A string in a body. Raises `BadRequest`."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise BadRequest(f"{name} should be a string")
    return value


def routing_key(value: object) -> str:
    """The value, if it may be a routing key on the wire. Raises `BadRequest`."""
    if not isinstance(value, str) or len(value.encode()) > NAME_BYTES_MAX:
        raise BadRequest(f"routing_key should be a string of {NAME_BYTES_MAX} octets at most")
    return value
