"""The client on real sockets, against a broker in this process."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from pamqp import commands

from warren import Broker
from warren.client.connection import (
    BrokerTarget,
    ChannelFailed,
    ClientConnection,
    ConnectionFailed,
    network,
    open_any,
)
from warren.client.events import (
    ChannelClosed,
    ConnectionEnded,
    Delivered,
    Event,
    PublishesConfirmed,
    PublishRefused,
)
from warren.client.handshake import Login, Tuning
from warren.config import Listener, SslOptions

HEADER = b"\x00\x3c\0\0" + (2).to_bytes(8, "big") + b"\x10\0\x02"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


class Recorder:
    """A user that keeps what it hears, and can wait until it has heard enough."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._heard = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def received(self, connection: ClientConnection, events: Sequence[Event]) -> None:
        self.events += events
        self._changed.set()

    def writable(self, connection: ClientConnection) -> None:
        self._changed.set()

    async def until(self, kind: type[Any], count: int = 1) -> list[Any]:
        while len(found := [one for one in self.events if isinstance(one, kind)]) < count:
            self._changed.clear()
            await self._changed.wait()
        return found


def target(broker: Broker, password: str = "guest", port: int | None = None) -> BrokerTarget:
    return BrokerTarget(
        "amqp://there",
        network("127.0.0.1", broker.port if port is None else port, None, None),
        Login("guest", password, "/", "Shovel s"),
        Tuning(),
        timeout_s=20,
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    uvloop.run(bounded())


def test_messages_go_out_are_confirmed_and_come_back(broker: Broker) -> None:
    async def work() -> None:
        user = Recorder()
        connection = await ClientConnection.open(target(broker), user)
        await connection.open_channel(1, confirms=True)
        declared = await connection.ask(1, commands.Queue.Declare, queue="", exclusive=True)
        for _ in range(3):
            connection.publish(1, b"", declared.queue.encode(), HEADER, b"hi", mandatory=True)
        connection.publish(1, b"", b"no such queue", HEADER, b"hi", mandatory=True)
        (refused,) = await user.until(PublishRefused)
        assert (refused.tag, refused.reason) == (4, "312 NO_ROUTE")
        while sum(len(one.tags) for one in await user.until(PublishesConfirmed)) < 3:
            await user.until(PublishesConfirmed, len(user.events))
        await connection.ask(1, commands.Basic.Consume, queue=declared.queue)
        delivered = await user.until(Delivered, 3)
        assert [one.body for one in delivered] == [b"hi"] * 3
        assert {one.header for one in delivered} == {HEADER}
        await connection.close()

    run(work())


def test_question_that_is_refused_raises_and_the_channel_can_be_opened_again(
    broker: Broker,
) -> None:
    async def work() -> None:
        user = Recorder()
        connection = await ClientConnection.open(target(broker), user)
        await connection.open_channel(1)
        with pytest.raises(ChannelFailed) as failure:
            await connection.ask(1, commands.Queue.Declare, queue="not there", passive=True)
        assert failure.value.code == 404
        assert [type(event) for event in user.events] == [ChannelClosed]
        await connection.open_channel(1)
        await connection.close()

    run(work())


def test_wrong_password_and_closed_port_are_told_apart(broker: Broker) -> None:
    async def work() -> None:
        with pytest.raises(ConnectionFailed) as failure:
            await ClientConnection.open(target(broker, "wrong"), Recorder())
        assert failure.value.code == 403
        with pytest.raises(ConnectionFailed) as failure:
            await ClientConnection.open(target(broker, port=1), Recorder())
        assert failure.value.code == 0

    run(work())


def test_of_several_brokers_the_first_that_answers_is_taken(broker: Broker) -> None:
    async def work() -> None:
        closed, open_ = target(broker, port=1), target(broker)
        connection, taken = await open_any([closed, open_], Recorder())
        assert taken is open_
        await connection.close()
        with pytest.raises(ConnectionFailed) as failure:
            await open_any([closed, closed], Recorder())
        assert failure.value.text.count("amqp://there: ") == 2
        with pytest.raises(ConnectionFailed, match="no broker is named"):
            await open_any([], Recorder())

    run(work())


def test_broker_that_says_nothing_is_given_up(broker: Broker) -> None:
    async def work() -> None:
        def keep_quiet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)

        writers: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(keep_quiet, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match="not connected within"):
            await ClientConnection.open(
                target(broker, port=port)._replace(timeout_s=0.05), Recorder()
            )
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        silent.close()
        await silent.wait_closed()

    run(work())


def test_close_of_the_broker_ends_questions_and_is_told() -> None:
    async def work() -> None:
        broker = await asyncio.to_thread(Broker().start)
        user = Recorder()
        connection = await ClientConnection.open(target(broker), user)
        await connection.open_channel(1)
        await asyncio.to_thread(broker.stop)
        (ended,) = await user.until(ConnectionEnded)
        assert ended.code == 320
        with pytest.raises(ConnectionFailed):
            await connection.ask(1, commands.Queue.Declare, queue="q")

    run(work())


def test_the_socket_is_closed_when_close_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    files = SslOptions(certfile=tmp_path / "both.pem", keyfile=tmp_path / "both.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    lost: list[ClientConnection] = []
    connection_lost = ClientConnection.connection_lost

    def told(connection: ClientConnection, error: Exception | None) -> None:
        connection_lost(connection, error)
        lost.append(connection)

    monkeypatch.setattr(ClientConnection, "connection_lost", told)

    async def work(port: int) -> None:
        encrypted = network("127.0.0.1", port, trusting, "127.0.0.1")
        there = BrokerTarget(
            "amqps://there", encrypted, Login("guest", "guest", "/", "s"), Tuning()
        )
        connection = await ClientConnection.open(there, Recorder())
        await connection.close()
        assert lost == [connection]

    with Broker(ssl=files, tls_listeners=(Listener("127.0.0.1", 0),)) as running:
        assert running.tls_port is not None
        run(work(running.tls_port))


def test_reading_pauses_and_goes_on(broker: Broker) -> None:
    async def work() -> None:
        user = Recorder()
        connection = await ClientConnection.open(target(broker), user)
        await connection.open_channel(1, confirms=True)
        connection.pause_reading()
        connection.publish(1, b"", b"nowhere", HEADER, b"hi", mandatory=True)
        other = await ClientConnection.open(target(broker), Recorder())
        await other.close()
        assert user.events == []
        connection.resume_reading()
        await user.until(PublishRefused)
        await connection.close()

    run(work())


def test_socket_that_takes_no_more_says_so_and_later_that_it_does(broker: Broker) -> None:
    async def work() -> None:
        user = Recorder()
        connection = await ClientConnection.open(target(broker), user)
        await connection.open_channel(1)
        header = HEADER[:4] + (1 << 20).to_bytes(8, "big") + HEADER[12:]
        while connection.may_publish:
            connection.publish(1, b"", b"nowhere", header, bytes(1 << 20), mandatory=False)
            connection.flush()
        while not connection.may_publish:
            user._changed.clear()
            await user._changed.wait()
        await connection.close()

    run(work())
