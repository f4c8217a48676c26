"""One broker of a federation, with a client, and what tests ask of both."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from api_client import ApiClient
from moving import End, until

RETRIES = {"reconnect-delay": 0.05}


class Side(End):
    """Upstreams, policies, links, exchanges and queues; all are gone when the test is over."""

    def __exit__(self, *_: object) -> None:
        for policy in self.api.get("/policies")[1]:
            self.api.delete(f"/policies/{quoted(policy['vhost'])}/{quoted(policy['name'])}")
        for component in ("federation-upstream", "federation-upstream-set"):
            for one in self.api.get(f"/parameters/{component}")[1]:
                path = f"{component}/{quoted(one['vhost'])}/{quoted(one['name'])}"
                self.api.delete(f"/parameters/{path}")
        until(lambda: not self.links())
        super().__exit__()
        for exchange in self.api.get("/exchanges/%2F")[1]:
            if exchange["name"] and not exchange["name"].startswith("amq."):
                self.api.delete(f"/exchanges/%2F/{quoted(exchange['name'])}")

    # Setting up

    def upstream(self, name: str, uri: Any, vhost: str = "/", **keys: Any) -> None:
        value = {"uri": uri, **RETRIES, **with_dashes(keys)}
        path = f"/parameters/federation-upstream/{quoted(vhost)}/{quoted(name)}"
        answer = self.api.put(path, {"value": value})
        assert answer[0] in (201, 204), answer

    def policy(self, pattern: str, name: str = "fed", vhost: str = "/", **keys: Any) -> None:
        definition = with_dashes(keys) or {"federation-upstream-set": "all"}
        body = {"pattern": pattern, "definition": definition}
        answer = self.api.put(f"/policies/{quoted(vhost)}/{name}", body)
        assert answer[0] in (201, 204), answer

    def no_policy(self, name: str = "fed") -> None:
        assert self.api.delete(f"/policies/%2F/{name}")[0] == 204

    def exchange(self, name: str, kind: str = "topic") -> None:
        self.channel.exchange_declare(name, kind, durable=True)

    def queue_bound(self, queue: str, exchange: str, *keys: str, **arguments: Any) -> None:
        self.declare(queue)
        for key in keys:
            self.channel.queue_bind(queue, exchange, key, arguments or None)

    def publish_to(self, exchange: str, key: str, *bodies: str, properties: Any = None) -> None:
        for body in bodies:
            self.channel.basic_publish(exchange, key, body.encode(), properties)

    # Looking

    def links(self) -> list[dict[str, Any]]:
        status, rows = self.api.get("/federation-links")
        assert status == 200, rows
        return list(rows)

    def until_links(self, count: int = 1, status: str = "running") -> list[dict[str, Any]]:
        """The links, as soon as there are so many, all of this status."""

        def look() -> Any:
            rows = self.links()
            return rows if [row["status"] for row in rows] == [status] * count else None

        found: list[dict[str, Any]] = until(look)
        return found

    def helpers(self) -> list[dict[str, Any]]:
        return [
            one
            for one in self.api.get("/exchanges/%2F")[1]
            if one["name"].startswith("federation: ")
        ]

    def carried(self, exchange: str) -> list[tuple[str, dict[str, Any]]]:
        """Keys and arguments of the bindings from the exchange to helpers."""
        status, rows = self.api.get(f"/exchanges/%2F/{quoted(exchange)}/bindings/source")
        if status == 404:
            return []
        found = [
            (row["routing_key"], row["arguments"])
            for row in rows
            if row["destination"].startswith("federation: ")
        ]
        return sorted(found, key=str)

    def until_carried(self, exchange: str, *keys: str) -> list[tuple[str, dict[str, Any]]]:
        def look() -> Any:
            found = self.carried(exchange)
            return [key for key, _ in found] == sorted(keys)

        until(look)
        return self.carried(exchange)

    def queues(self) -> set[str]:
        return {row["name"] for row in self.api.get("/queues/%2F")[1]}


def quoted(name: str) -> str:
    return quote(name, safe="")


def with_dashes(keys: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): item for key, item in keys.items()}


def user(side: Side, name: str) -> ApiClient:
    return ApiClient(side.broker, name)
