"""One end of a shovel: a broker with a client, and what tests ask of both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import quote

import pika
from api_client import ApiClient

from warren import Broker

PATIENCE_S = 30.0


def until(look: Callable[[], Any]) -> Any:
    """What the look finds, as soon as it finds something."""
    began = time.monotonic()
    while not (found := look()):
        waited_s = time.monotonic() - began
        assert waited_s < PATIENCE_S, "it did not happen"
        # Less often the longer it takes: for most looks a broker has to work.
        time.sleep(min(0.01 + waited_s / 20, 0.1))
    return found


class End:
    """Queues, messages and shovels of one broker; all are gone when the test is over."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.api = ApiClient(broker)

    def __enter__(self) -> Self:
        self._connection = pika.BlockingConnection(pika.URLParameters(self.broker.url))
        self.channel = self._connection.channel()
        self.channel.confirm_delivery()
        return self

    def __exit__(self, *_: object) -> None:
        for parameter in self.api.get("/parameters/shovel")[1]:
            self.clear(parameter["name"], parameter["vhost"])
            self.until_gone(parameter["name"])
        if self._connection.is_open:
            self._connection.close()
        for queue in self.api.get("/queues")[1]:
            vhost, name = quote(queue["vhost"], safe=""), quote(queue["name"], safe="")
            self.api.delete(f"/queues/{vhost}/{name}")

    @property
    def url(self) -> str:
        return self.broker.url

    def declare(self, queue: str, **arguments: Any) -> None:
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.channel.queue_declare(queue, durable=True, arguments=named)

    def publish(self, queue: str, *bodies: str, **properties: Any) -> None:
        for body in bodies:
            self.channel.basic_publish(
                "", queue, body.encode(), pika.BasicProperties(**properties), mandatory=True
            )

    def has_queue(self, queue: str) -> bool:
        return self.api.get(f"/queues/%2F/{quote(queue, safe='')}")[0] == 200

    def take(self, queue: str, count: int) -> list[tuple[Any, Any, bytes]]:
        """So many messages, as soon as they are there."""
        until(lambda: self.has_queue(queue))
        found = []

        def got_all() -> bool:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is not None:
                found.append((method, properties, body))
            return len(found) == count

        until(got_all)
        return found

    def bodies(self, queue: str, count: int) -> list[str]:
        return [body.decode() for _, _, body in self.take(queue, count)]

    def is_empty(self, queue: str) -> bool:
        return self.channel.basic_get(queue)[0] is None

    # Shovels

    def shovel(self, name: str, value: dict[str, Any], vhost: str = "/") -> None:
        """Make or change one."""
        path = f"/parameters/shovel/{quote(vhost, safe='')}/{quote(name, safe='')}"
        answer = self.api.put(path, {"value": value})
        assert answer[0] in (201, 204), answer

    def clear(self, name: str, vhost: str = "/") -> None:
        path = f"/parameters/shovel/{quote(vhost, safe='')}/{quote(name, safe='')}"
        self.api.delete(path)

    def row(self, name: str) -> Any:
        """The status of a shovel; None where there is none."""
        return next((row for row in self.api.get("/shovels")[1] if row["name"] == name), None)

    def until_state(self, name: str, state: str) -> Any:
        def look() -> Any:
            row = self.row(name)
            return row if row is not None and row["state"] == state else None

        return until(look)

    def until_gone(self, name: str) -> None:
        until(lambda: self.row(name) is None)
