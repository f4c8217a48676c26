"""A client of the HTTP management API; it returns every answer, refusals as well."""

import base64
import json
import ssl
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPMessage, HTTPSConnection
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

from warren.compat_tests.raw_connection import Surprise

T = TypeVar("T")

TIMEOUT_S = 20.0

# RabbitMQ's statistics are five seconds old, and some take two rounds.
STATISTICS_S = 15.0

NOT_FOUND = {"error": "Object Not Found", "reason": "Not Found"}
VHOST_NOT_FOUND = {"error": "not_found", "reason": "vhost_not_found"}
CLOSED_OBJECT = "User not authorised to access object"
CLOSED_VHOST = "User not authorised to access virtual host"


class Answer(NamedTuple):
    """An answer; `json` is None if its body is not JSON."""

    status: int
    json: Any
    headers: HTTPMessage
    body: bytes

    @property
    def refusal(self) -> tuple[int, Any]:
        """Status and reason."""
        return self.status, self.json["reason"]


class Api:
    """One user of a management listener; `Api(url, None)` sends no login.

    Paths are given in parts, which are quoted here: `get("queues", vhost, "q", columns="name")`.
    """

    def __init__(self, url: str, login: tuple[str, str] | None) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        self.url = url
        self.secure = parts.scheme == "https"
        self.address = (parts.hostname, parts.port or 15672)
        self.headers: dict[str, str] = {}
        if login is not None:
            token = base64.b64encode(":".join(login).encode()).decode()
            self.headers["Authorization"] = f"Basic {token}"

    @classmethod
    def of_url(cls, url: str) -> "Api":
        """A client with the login in the URL."""
        parts = urlsplit(url)
        return cls(url, (unquote(parts.username or "guest"), unquote(parts.password or "guest")))

    def asked_by(self, user: str, password: str) -> "Api":
        return Api(self.url, (user, password))

    def asked_by_nobody(self) -> "Api":
        return Api(self.url, None)

    def ask(
        self,
        verb: str,
        *path: str,
        body: Any = None,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request. Octets are sent as they are, anything else as JSON."""
        octets = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {**self.headers, **({"Content-Type": "application/json"} if octets else {})}
        where = "/".join(["/api", *(quote(part, safe="") for part in path)])
        if query:
            where += "?" + urlencode(query)
        connection = self._connection()
        try:
            connection.request(verb, where, octets, {**sent, **(headers or {})})
            response = connection.getresponse()
            received = response.read()
        finally:
            connection.close()
        is_json = (
            response.headers.get_content_type() == "application/json"
            and received
            and "content-encoding" not in response.headers
        )
        return Answer(
            response.status, json.loads(received) if is_json else None, response.headers, received
        )

    def _connection(self) -> HTTPConnection:
        if self.secure:
            # Certificates are not checked: they are the subject of other tests.
            context = ssl._create_unverified_context()
            return HTTPSConnection(*self.address, timeout=TIMEOUT_S, context=context)
        return HTTPConnection(*self.address, timeout=TIMEOUT_S)

    # Requests that must succeed

    def get(self, *path: str, **query: str) -> Any:
        """The JSON of a 200."""
        return expected(self.ask("GET", *path, query=query), 200, path).json

    def put(self, *path: str, body: Any = None) -> int:
        """PUT; returns 201 for something new, 204 for a change."""
        answer = self.ask("PUT", *path, body={} if body is None else body)
        return expected(answer, 204 if answer.status == 204 else 201, path).status

    def post(self, *path: str, body: Any = None) -> Any:
        """The JSON of a 200."""
        return expected(self.ask("POST", *path, body=body), 200, path).json

    def delete(self, *path: str, query: dict[str, str] | None = None) -> None:
        expected(self.ask("DELETE", *path, query=query), 204, path)

    # Short forms

    def bind(
        self, vhost: str, source: str, queue: str, routing_key: str = "", **arguments: Any
    ) -> str:
        """Binds a queue. Returns the last part of the location, which names the binding."""
        body = {"routing_key": routing_key, "arguments": arguments}
        answer = self.ask("POST", "bindings", vhost, "e", source, "q", queue, body=body)
        location = expected(answer, 201, ("bindings", vhost)).headers["location"]
        return unquote(str(location).rpartition("/")[2])

    def publish(
        self, vhost: str, routing_key: str, payload: str = "", exchange: str = "amq.default"
    ) -> bool:
        """Publish a message; returns whether it was routed."""
        body = message(routing_key, payload)
        routed: bool = self.post("exchanges", vhost, exchange, "publish", body=body)["routed"]
        return routed

    def got(
        self, vhost: str, queue: str, ackmode: str = "ack_requeue_false", count: int = 100
    ) -> list[dict[str, Any]]:
        """Fetch messages of a queue; returns them as the API shows them."""
        body = {"count": count, "ackmode": ackmode, "encoding": "auto"}
        rows: list[dict[str, Any]] = self.post("queues", vhost, queue, "get", body=body)
        return rows


class Colleague(NamedTuple):
    """Another user of the management API."""

    name: str
    api: Api


def expected(answer: Answer, status: int, path: tuple[str, ...]) -> Answer:
    if answer.status != status:
        where = "/".join(path)
        raise Surprise(f"wanted {status} for {where}, got {answer.status} {answer.body[:500]!r}")
    return answer


def message(routing_key: str, payload: str = "", **changes: Any) -> dict[str, Any]:
    """The body of a request that publishes a message."""
    return {
        "properties": {},
        "routing_key": routing_key,
        "payload": payload,
        "payload_encoding": "string",
        **changes,
    }


def eventually(look: Callable[[], T], wanted: Callable[[T], Any] = bool) -> T:
    """Call `look` until its result is as wanted, and return that. Statistics may need seconds."""
    deadline = time.monotonic() + STATISTICS_S
    while True:
        seen = look()
        if wanted(seen):
            return seen
        if time.monotonic() > deadline:
            raise Surprise(f"statistics did not get there; they show {str(seen)[:1000]}")
        time.sleep(0.1)


def names_of(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]
