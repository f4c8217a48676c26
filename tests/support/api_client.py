"""A client of the management API, as small as tests need it."""

from __future__ import annotations

import json
from base64 import b64encode
from http.client import HTTPConnection, HTTPMessage
from typing import Any, NamedTuple

from warren import Broker

TIMEOUT_S = 30.0


class Answer(NamedTuple):
    """`json` is None where the answer is empty or no JSON."""

    status: int
    json: Any
    headers: HTTPMessage
    body: bytes


class ApiClient:
    """Asks as one user; without a user nobody is named. Paths are below /api."""

    def __init__(
        self, broker: Broker, user: str | None = "guest", password: str | None = None
    ) -> None:
        self._address = (broker.host, broker.http_port)
        self._headers: dict[str, str] = {}
        if user is not None:
            named = f"{user}:{user if password is None else password}"
            self._headers["Authorization"] = f"Basic {b64encode(named.encode()).decode()}"

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self.ask("GET", path, headers=headers)[:2]

    def put(self, path: str, body: Any = None) -> tuple[int, Any]:
        return self.ask("PUT", path, body)[:2]

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return self.ask("POST", path, body)[:2]

    def delete(self, path: str) -> tuple[int, Any]:
        return self.ask("DELETE", path)[:2]

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Octets are sent as they are, anything else as JSON."""
        octets = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = HTTPConnection(*self._address, timeout=TIMEOUT_S)
        try:
            sent = {key.replace("_", "-"): value for key, value in (headers or {}).items()}
            connection.request(method, f"/api{path}", octets, {**self._headers, **sent})
            response = connection.getresponse()
            received = response.read()
        finally:
            connection.close()
        shown = response.headers.get_content_type() == "application/json" and received
        return Answer(
            response.status, json.loads(received) if shown else None, response.headers, received
        )


def reason(answer: tuple[int, Any]) -> tuple[int, Any]:
    """Status and reason of a refusal."""
    status, body = answer
    return status, body["reason"]


NOT_FOUND = (404, {"error": "Object Not Found", "reason": "Not Found"})
VHOST_NOT_FOUND = (404, {"error": "not_found", "reason": "vhost_not_found"})
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
