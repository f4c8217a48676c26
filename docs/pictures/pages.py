"""Takes the picture of the web pages in the README: a queue that fills faster than it empties.

    python docs/pictures/pages.py

starts a node with some clients, looks at it in Chromium after two minutes, and writes `pages.png`
beside this file. It needs the packages for tests (`pip install -e '.[test]'`).
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from pathlib import Path

import pika
from playwright.sync_api import sync_playwright

from warren import Broker

PICTURE = Path(__file__).with_suffix(".png")
CHROMIUM = "/usr/bin/chromium"
SIZE = {"width": 1280, "height": 640}
SHOWN_AFTER_S = 100.0
WAVE_S = 4.0
BODY = b'{"order": 4711, "paid": true}' * 8


class Client(threading.Thread):
    """Publishes `published_per_s`, and takes `taken_per_s` messages of the queue."""

    def __init__(
        self, url: str, name: str, *, published_per_s: float = 0, taken_per_s: float = 0
    ) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._name = name
        self._published_per_s = published_per_s
        self._taken_per_s = taken_per_s
        self.ended = threading.Event()

    def run(self) -> None:
        parameters = pika.URLParameters(self._url)
        parameters.client_properties = {"connection_name": self._name}
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.confirm_delivery()
        held: list[int] = []
        if self._taken_per_s:
            channel.basic_qos(prefetch_count=50)
            channel.basic_consume("orders", lambda *message: held.append(message[1].delivery_tag))
        persistent = pika.BasicProperties(delivery_mode=2, content_type="application/json")
        began = last = time.monotonic()
        to_publish = to_take = 0.0
        while not self.ended.wait(0.05):
            now = time.monotonic()
            # A wave, as of people who order.
            wave = 1 + 0.5 * math.sin((now - began) / WAVE_S)
            to_publish += (now - last) * self._published_per_s * wave
            to_take += (now - last) * self._taken_per_s
            last = now
            while to_publish >= 1:
                channel.basic_publish("shop", "order.new", BODY, persistent)
                to_publish -= 1
            connection.process_data_events(0)
            while held and to_take >= 1:
                channel.basic_ack(held.pop(0))
                to_take -= 1
        connection.close()


def fill(broker: Broker) -> list[Client]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.exchange_declare("shop", "topic", durable=True)
    arguments = {"x-max-length": 100_000, "x-dead-letter-exchange": "dead"}
    channel.queue_declare("orders", durable=True, arguments=arguments)
    channel.queue_bind("orders", "shop", "order.#")
    connection.close()
    clients = [
        Client(broker.url, "web shop", published_per_s=90),
        Client(broker.url, "warehouse 1", taken_per_s=40),
        Client(broker.url, "warehouse 2", taken_per_s=35),
    ]
    for client in clients:
        client.start()
    return clients


def take_picture(broker: Broker) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(broker.http_url)
        page.get_by_label("User", exact=True).fill("guest")
        page.get_by_label("Password").fill("guest")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Overview", level=1).wait_for()
        page.goto(f"{broker.http_url}/#/queues/%2F/orders")
        page.get_by_label("Time shown").select_option("60")
        page.get_by_role("button", name="Refresh", exact=True).click()
        page.wait_for_timeout(1500)
        page.screenshot(path=str(PICTURE))
        browser.close()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Broker(data_dir=directory, http_port=0) as broker,
    ):
        clients = fill(broker)
        time.sleep(SHOWN_AFTER_S)
        take_picture(broker)
        for client in clients:
            client.ended.set()
        for client in clients:
            client.join()


if __name__ == "__main__":
    main()
