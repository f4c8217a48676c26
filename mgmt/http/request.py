"""One request as endpoints see it: who asks, the path, the query, the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from warren.core.errors import AccessRefused
from warren.core.vhost import VirtualHost
from warren.mgmt.http.caller import Caller
from warren.mgmt.http.errors import BadRequest, NotAuthorised, ObjectNotFound

if TYPE_CHECKING:
    from warren.core.node import Node
    from warren.mgmt.managed_node import ManagedNode

BODY_BYTES_MAX = 64 << 20
"""Of definitions; nothing else is that large."""

DEFAULT_EXCHANGE_IN_PATHS = "amq.default"


class ApiRequest:
    """`managed` is the node that is asked, `caller` who asks."""

    def __init__(self, managed: ManagedNode, caller: Caller, http: web.Request) -> None:
        self.managed = managed
        self.node: Node = managed.node
        self.caller = caller
        self.http = http

    def name(self, part: str) -> str:
        """A part of the path, decoded."""
        return self.http.match_info[part]

    def exchange_name(self, part: str) -> str:
        name = self.name(part)
        return "" if name == DEFAULT_EXCHANGE_IN_PATHS else name

    def vhost(self) -> VirtualHost:
        """The virtual host in the path. Raises `ApiError` if it is not there or not open."""
        name = self.name("vhost")
        vhost = self.node.vhosts.get(name)
        if vhost is None:
            raise ObjectNotFound()
        if not self.caller.may_enter(self.node, name):
            raise NotAuthorised("User not authorised to access virtual host")
        return vhost

    def visible_vhosts(self) -> list[VirtualHost]:
        """What lists are about: all the caller may see, or the one that is asked for."""
        node, caller = self.node, self.caller
        only = self.http.headers.get("X-Vhost") or None
        return [
            node.vhosts[name]
            for name in sorted(node.vhosts)
            if only in (None, name) and caller.may_see(node, name)
        ]

    def check(self, vhost: str, kind: Any, name: str, permission: Any) -> None:
        """Raise as RabbitMQ does unless AMQP permissions allow it."""
        if self.caller.local:
            return
        try:
            self.node.access.check_resource(self.caller.user, vhost, kind, name, permission)
        except AccessRefused as error:
            raise NotAuthorised("Access refused.") from error

    # Query and body

    def query(self, name: str, default: str = "") -> str:
        return self.http.query.get(name, default)

    def query_flag(self, name: str) -> bool:
        return boolean(self.http.query.get(name), False)

    async def body(self) -> dict[str, Any]:
        """The JSON object of the body; none is an empty one. Raises `BadRequest`."""
        data = await self.http.read()
        if not data.strip():
            return {}
        body = parse_json(data)
        if isinstance(body, str):
            raise BadRequest("The request body is a JSON string: was it encoded twice?")
        if not isinstance(body, dict):
            raise BadRequest("a JSON object was wanted", "not_json")
        return body


def parse_json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}", "not_json") from error


def boolean(value: Any, default: bool) -> bool:
    """A flag, as clients send it: RabbitMQ's own tool sends strings. Raises `BadRequest`."""
    match value:
        case None:
            return default
        case True | "true":
            return True
        case False | "false":
            return False
    raise BadRequest(["not_boolean", value])


def demanded(body: dict[str, Any], *names: str) -> list[Any]:
    """These values of a body. Raises `BadRequest` that names all that are missing."""
    missing = [name for name in names if name not in body]
    if missing:
        raise BadRequest("[" + ",\n ".join(f"{{key_missing,{name}}}" for name in missing) + "]")
    return [body[name] for name in names]


def text(body: dict[str, Any], name: str, default: str = "") -> str:
    """A text of a body. Raises `BadRequest`."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise BadRequest(f"{name} should be a string")
    return value
