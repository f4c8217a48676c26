"""Changes a broker as its administrator, through RabbitMQ's HTTP management API."""

import base64
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, unquote, urlsplit


class Refused(Exception):
    """The management API answered with an error status."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status
        self.body = body


class Admin:
    """One management listener, for example `Admin("http://guest:guest@127.0.0.1:15672")`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"wanted http://user:password@host:port, got {url!r}")
        self.base = f"{parts.scheme}://{parts.hostname}:{parts.port or 15672}/api"
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        self.authorization = "Basic " + base64.b64encode(login.encode()).decode()

    def call(self, verb: str, *path: str, body: Any = None, reason: str | None = None) -> Any:
        """One request; the parts of the path are quoted here. Returns the JSON, None if empty."""
        url = "/".join([self.base, *(quote(part, safe="") for part in path)])
        request = urllib.request.Request(url, method=verb)
        request.add_header("Authorization", self.authorization)
        if reason is not None:
            request.add_header("X-Reason", reason)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, data, timeout=10) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode(errors="replace")) from error
        return json.loads(text) if text else None

    def forget(self, *path: str) -> None:
        """Deletes something; it is no error if that is gone already."""
        try:
            self.call("DELETE", *path)
        except Refused as refusal:
            if refusal.status != 404:
                raise

    def put_vhost(self, vhost: str) -> None:
        self.call("PUT", "vhosts", vhost, body={})

    def put_user(self, user: str, password: str, tags: str = "") -> None:
        self.call("PUT", "users", user, body={"password": password, "tags": tags})

    def permit(
        self, vhost: str, user: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        body = {"configure": configure, "write": write, "read": read}
        self.call("PUT", "permissions", vhost, user, body=body)

    def permit_topic(
        self, vhost: str, user: str, exchange: str, write: str = ".*", read: str = ".*"
    ) -> None:
        body = {"exchange": exchange, "write": write, "read": read}
        self.call("PUT", "topic-permissions", vhost, user, body=body)

    def limit_vhost(self, vhost: str, name: str, value: int) -> None:
        self.call("PUT", "vhost-limits", vhost, name, body={"value": value})

    def limit_user(self, user: str, name: str, value: int) -> None:
        self.call("PUT", "user-limits", user, name, body={"value": value})

    def put_policy(
        self,
        vhost: str,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        priority: float = 0,
        apply_to: str = "all",
        kind: str = "policies",
    ) -> None:
        """Sets a policy; with kind `operator-policies`, an operator policy."""
        body = {
            "pattern": pattern,
            "definition": definition,
            "priority": priority,
            "apply-to": apply_to,
        }
        self.call("PUT", kind, vhost, name, body=body)

    def connections_named(self, name: str) -> list[str]:
        """The broker's names of the connections whose clients call themselves `name`."""
        return [
            connection["name"]
            for connection in self.call("GET", "connections")
            if (connection.get("client_properties") or {}).get("connection_name") == name
        ]
