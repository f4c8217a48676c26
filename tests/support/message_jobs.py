"""Jobs on messages, begun over HTTP and waited for; and what queues hold before and after."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pika
from api_client import ApiClient

from warren import Broker

NUMBERS = [str(number) for number in range(12)]


def fill(channel: Any, name: str = "q", bodies: Any = NUMBERS, **arguments: Any) -> None:
    arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=arguments)
    for body in bodies:
        properties = pika.BasicProperties(delivery_mode=2, headers={"n": int(body)})
        channel.basic_publish("", name, body.encode(), properties)


def begin(api: ApiClient, action: str, queue: str = "q", **plan: Any) -> str:
    status, begun = api.post(f"/queues/%2F/{queue}/messages/jobs", {"action": action, **plan})
    assert status == 200, begun
    return f"/message-jobs/%2F/{quote(begun['job'])}"


def over(broker: Broker, api: ApiClient, path: str, *states: str) -> Any:
    async def wait() -> Any:
        while True:
            status, job = await asyncio.to_thread(api.get, path)
            assert status == 200, job
            if job["state"] in (states or ("completed", "stopped", "failed", "interrupted")):
                return job

    return asyncio.run(asyncio.wait_for(wait(), 30))


def do(broker: Broker, api: ApiClient, action: str, **plan: Any) -> Any:
    return over(broker, api, begin(api, action, **plan))


def bodies(api: ApiClient, queue: str = "q") -> list[str]:
    found: list[str] = []
    start = ""
    while start is not None:
        _, page = api.get(f"/queues/%2F/{queue}/messages?from={start}")
        found += [row["payload"] for row in page["messages"]]
        start = page["next"]
    return found
