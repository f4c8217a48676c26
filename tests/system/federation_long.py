"""Federation between two Warrens, and with a real RabbitMQ 3.10.8 in both directions.

Run by hand:

    PYTHONPATH=. python tests/system/federation_long.py [--server FILE]

Starts a RabbitMQ of its own, with its data in a directory of its own and free ports, and a Warren
beside it; as root, RabbitMQ runs as the user `rabbitmq`. Both are stopped at the end. Each step
says what it found; the first that finds something else ends the script with an error. It takes
about five minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pika

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from by_hand import (  # noqa: E402
    SERVER,
    Rabbitmq,
    Warren,
    channel_at,
    eventually,
    free_ports,
    step,
)
from pika.exceptions import AMQPError  # noqa: E402

from warren.mgmt.ctl.control_client import ControlClient, RemoteTarget  # noqa: E402

Broker: TypeAlias = Rabbitmq | Warren

MESSAGES = 5_000
PLUGINS = ("rabbitmq_management", "rabbitmq_federation", "rabbitmq_federation_management")


def request(broker: Broker, method: str, *path: str, body: Any = None) -> Any:
    client = ControlClient(
        RemoteTarget(f"http://127.0.0.1:{broker.http_port}", "guest", "guest"), 60
    )
    try:
        return client.request(method, *path, body=body)
    finally:
        client.close()


def ask(broker: Broker, *path: str) -> Any:
    return request(broker, "GET", *path)


def put(broker: Broker, *path: str, body: Any) -> None:
    request(broker, "PUT", *path, body=body)


def delete(broker: Broker, *path: str) -> None:
    request(broker, "DELETE", *path)


def upstream(down: Broker, up: Broker, **keys: Any) -> None:
    value = {"uri": up.url, "reconnect-delay": 1, **keys}
    put(down, "parameters", "federation-upstream", "/", "up", body={"value": value})


def policy(down: Broker, pattern: str) -> None:
    definition = {"federation-upstream-set": "all"}
    put(down, "policies", "/", "fed", body={"pattern": pattern, "definition": definition})


def no_federation(down: Broker) -> None:
    delete(down, "policies", "/", "fed")
    delete(down, "parameters", "federation-upstream", "/", "up")
    eventually(lambda: ask(down, "federation-links") == [])


def runs(down: Broker, count: int = 1) -> bool:
    return [link["status"] for link in ask(down, "federation-links")] == ["running"] * count


def exchange_and_queue(broker: Broker, exchange: str, queue: str, key: str) -> None:
    with channel_at(broker.url) as channel:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, key)


def carried(up: Broker, exchange: str) -> list[str]:
    rows = ask(up, "exchanges", "/", exchange, "bindings", "source")
    return sorted(
        row["routing_key"] for row in rows if row["destination"].startswith("federation: ")
    )


class Publisher:
    """Publishes numbers with confirms, over and over where the broker is away."""

    def __init__(self, broker: Broker, exchange: str, key: str, count: int) -> None:
        self._broker = broker
        self._exchange, self._key, self._count = exchange, key, count
        self.confirmed: set[int] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while len(self.confirmed) < self._count:
            try:
                with channel_at(self._broker.url) as channel:
                    channel.confirm_delivery()
                    for number in range(self._count):
                        if number not in self.confirmed:
                            self._publish(channel, number)
            except (AMQPError, OSError):
                time.sleep(0.1)

    def _publish(self, channel: Any, number: int) -> None:
        persistent = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish(self._exchange, self._key, b"%d" % number, persistent, mandatory=True)
        self.confirmed.add(number)

    def join(self) -> None:
        self._thread.join()


def take(broker: Broker, queue: str, enough: Callable[[Counter[int]], bool]) -> Counter[int]:
    """What comes out of the queue, over and over where the broker is away."""
    found: Counter[int] = Counter()

    def look() -> bool:
        with channel_at(broker.url) as channel:
            for method, _, body in channel.consume(queue, inactivity_timeout=1):
                if method is None:
                    break
                found[int(body)] += 1
                channel.basic_ack(method.delivery_tag)
            channel.cancel()
        return enough(found)

    eventually(look)
    return found


def exchanges(up: Broker, down: Broker) -> None:
    exchange_and_queue(down, "x", "q", "a.#")
    upstream(down, up)
    policy(down, "^x$")
    eventually(lambda: runs(down) and carried(up, "x") == ["a.#"])
    with channel_at(down.url) as channel:
        channel.queue_bind("q", "x", "b")
        eventually(lambda: carried(up, "x") == ["a.#", "b"])
        channel.queue_unbind("q", "x", "b")
    eventually(lambda: carried(up, "x") == ["a.#"])
    with channel_at(up.url) as channel:
        channel.basic_publish("x", "a", b"0", pika.BasicProperties(user_id="guest"))
    eventually(lambda: ask(down, "queues", "/", "q").get("messages") == 1)
    with channel_at(down.url) as channel:
        _, properties, _ = channel.basic_get("q", auto_ack=True)
    (entry,) = properties.headers["x-received-from"]
    assert sorted(entry) == ["cluster-name", "exchange", "redelivered", "uri", "vhost"], entry
    assert "guest" not in entry["uri"] and properties.user_id is None
    step("  bindings go up, a message comes down and says where it was")

    publisher = Publisher(up, "x", "a.b", MESSAGES)
    eventually(lambda: len(publisher.confirmed) > MESSAGES // 4)
    up.kill()
    up.start()
    eventually(lambda: len(publisher.confirmed) > MESSAGES // 2)
    down.kill()
    down.start()
    publisher.join()
    found = take(down, "q", lambda found: found.keys() >= publisher.confirmed)
    doubles = found.total() - len(found)
    step(f"  {MESSAGES} messages, both killed meanwhile: none lost, {doubles} came twice")
    no_federation(down)


def both_ways(one: Broker, other: Broker) -> None:
    for here, there in ((one, other), (other, one)):
        exchange_and_queue(here, "both", "both ways", "#")
        upstream(here, there, **{"max-hops": 3})
        policy(here, "^both$")
    for here in (one, other):
        eventually(lambda: runs(here) and carried(here, "both") == ["#"])  # noqa: B023
    for number, here in enumerate((one, other)):
        with channel_at(here.url) as channel:
            for _ in range(100):
                channel.basic_publish("both", "k", b"%d" % number)
    for here in (one, other):
        found = take(here, "both ways", lambda found: found.total() >= 200)
        assert found == {0: 100, 1: 100}, found
    for here in (one, other):
        no_federation(here)
    step("  both ways at once: every message once at each")


def queues(up: Broker, down: Broker) -> None:
    name = "federated"
    with channel_at(down.url) as channel:
        channel.queue_declare(name, durable=True)
    upstream(down, up, **{"prefetch-count": 100})
    policy(down, f"^{name}$")
    eventually(lambda: runs(down) and ask(up, "queues", "/", name)["durable"])
    publisher = Publisher(up, "", name, MESSAGES)
    publisher.join()
    assert ask(down, "queues", "/", name).get("messages", 0) == 0
    step("  nothing comes while nobody waits")
    killed: list[Broker] = []

    def kill(found: Counter[int]) -> bool:
        for broker, share in ((up, 4), (down, 2)):
            if broker not in killed and len(found) > MESSAGES // share:
                killed.append(broker)
                broker.kill()
                broker.start()
        return found.keys() >= publisher.confirmed

    def look(found: Counter[int]) -> None:
        def got() -> bool:
            with channel_at(down.url) as channel:
                channel.basic_qos(prefetch_count=50)
                for method, _, body in channel.consume(name, inactivity_timeout=1):
                    if method is None:
                        break
                    found[int(body)] += 1
                    channel.basic_ack(method.delivery_tag)
                    if len(killed) < 2 and len(found) > MESSAGES // (4 - 2 * len(killed)):
                        break
            return kill(found)

        eventually(got)

    found: Counter[int] = Counter()
    look(found)
    assert len(killed) == 2
    doubles = found.total() - len(found)
    step(f"  {MESSAGES} messages, both killed meanwhile: none lost, {doubles} came twice")
    no_federation(down)


def try_it(rabbitmq: Rabbitmq, warren: Warren) -> None:
    for up, down in ((rabbitmq, warren), (warren, rabbitmq)):
        step(f"from {type(up).__name__} to {type(down).__name__}, exchanges")
        exchanges(up, down)
        step(f"from {type(up).__name__} to {type(down).__name__}, queues")
        queues(up, down)
    both_ways(rabbitmq, warren)


def without_plugin(rabbitmq: Rabbitmq, warren: Warren) -> None:
    step("from a RabbitMQ without the plugin to Warren, exchanges")
    exchanges(rabbitmq, warren)


def two_warrens(directory: Path) -> None:
    for part in ("up", "down"):
        (directory / part).mkdir()
    ports = free_ports(4)
    up = Warren(directory / "up", ports[:2])
    try:
        down = Warren(directory / "down", ports[2:])
        try:
            step("from Warren to Warren, exchanges")
            exchanges(up, down)
            step("from Warren to Warren, queues")
            queues(up, down)
            both_ways(up, down)
        finally:
            down.kill()
    finally:
        up.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=SERVER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-federation-") as name:
        two_warrens(Path(name))
    for plugins, trial in ((PLUGINS, try_it), (PLUGINS[:1], without_plugin)):
        with tempfile.TemporaryDirectory(prefix="warren-federation-") as name:
            directory = Path(name)
            directory.chmod(0o755)
            for part in ("rabbitmq", "warren"):
                (directory / part).mkdir()
            ports = free_ports(6)
            rabbitmq = Rabbitmq(options.server, directory / "rabbitmq", ports[:4], plugins)
            try:
                warren = Warren(directory / "warren", ports[4:])
                try:
                    trial(rabbitmq, warren)
                finally:
                    warren.kill()
            finally:
                rabbitmq.stop()
    step("all as it should be")


if __name__ == "__main__":
    main()
