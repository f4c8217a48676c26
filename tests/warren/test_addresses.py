"""What is said of addresses that cannot be listened at, and where the pages are."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from warren import Broker
from warren.addresses import AddressRefused, Purpose, opened, refusal, web_address
from warren.config import Listener


@pytest.mark.parametrize(
    ("purpose", "address", "error", "text"),
    [
        (
            Purpose.HTTP,
            Listener("nohost", 1),
            socket.gaierror(socket.EAI_NONAME, "unknown"),
            "host 'nohost' was not found: choose another with --http HOST:PORT, or management.tcp"
            " in rabbitmq.conf",
        ),
        (
            Purpose.AMQP,
            Listener("::", 5672),
            OSError(errno.EADDRINUSE, ""),
            "port 5672 of every address cannot be used, address already in use: choose another with"
            " --amqp HOST:PORT, or listeners.tcp in rabbitmq.conf",
        ),
        (
            Purpose.LINKS,
            Listener("192.0.2.1", 1),
            OSError(errno.EADDRNOTAVAIL, ""),
            "192.0.2.1 is no address of this machine: choose another with distribution.listener in"
            " rabbitmq.conf",
        ),
        (
            Purpose.METRICS,
            Listener("127.0.0.1", 80),
            OSError(errno.EACCES, ""),
            "port 80 may be used by privileged processes only: choose another with prometheus.tcp"
            " in rabbitmq.conf",
        ),
        (
            Purpose.AMQP_TLS,
            Listener("127.0.0.1", 80),
            OSError(errno.EMFILE, ""),
            "port 80 of 127.0.0.1 cannot be used, too many open files: choose another with"
            " listeners.ssl in rabbitmq.conf",
        ),
    ],
)
def test_an_address_that_is_refused_is_named_with_what_to_change(
    purpose: Purpose, address: Listener, error: OSError, text: str
) -> None:
    refused = refusal(purpose, address, error)
    assert (str(refused), refused.errno) == (text, error.errno)


def test_what_opens_gives_its_port() -> None:
    async def port() -> int:
        return 7

    assert asyncio.run(opened(Purpose.AMQP, Listener("h", 0), port())) == 7


@pytest.mark.parametrize(
    ("taken", "flag"),
    [
        ("amqp_listeners", "--amqp"),
        ("http_listeners", "--http"),
        ("metrics_listeners", "prometheus.tcp"),
    ],
)
def test_a_start_that_fails_names_the_flag_and_leaves_nothing_behind(
    tmp_path: Path, taken: str, flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listeners = (Listener("127.0.0.1", other.getsockname()[1]),)
        broker = Broker(data_dir=tmp_path / "above" / "data", **{taken: listeners})
        with pytest.raises(AddressRefused, match=f"choose another with {flag}"):
            broker.start()
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_leaves_a_directory_that_was_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker:
        broker.add_vhost("kept")
    with socket.create_server(("127.0.0.1", 0)) as other:
        listeners = (Listener("127.0.0.1", other.getsockname()[1]),)
        with pytest.raises(AddressRefused):
            Broker(data_dir=data, amqp_listeners=listeners).start()
    with Broker(data_dir=data) as broker:
        assert broker.call(lambda node: "kept" in node.vhosts)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("::", "localhost"), ("0.0.0.0", "localhost"), ("::1", "[::1]"), ("h.example", "h.example")],
)
def test_the_address_of_the_pages_can_be_clicked_at(host: str, shown: str) -> None:
    address = web_address("http", Listener(host, 0), 15672, "/broker")
    assert address == f"http://{shown}:15672/broker/"
