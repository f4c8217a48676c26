"""Accepting connections where the system has no descriptor for them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
import sys
from typing import Any

import pytest

from warren.amqp import accepting
from warren.amqp.accepting import Acceptor, SocketOptions


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


class FullSystem:
    """Fails the first accepts as a system without descriptors does."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.accepts = 0

    def socket(self) -> type[socket.socket]:
        system = self

        class Socket(socket.socket):
            def accept(self) -> Any:
                system.accepts += 1
                if system.accepts <= system.failures:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return super().accept()

        return Socket


async def greeting(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_a_failing_accept_does_not_keep_the_loop_busy_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system = FullSystem(failures=3)
    monkeypatch.setattr(accepting.socket, "socket", system.socket())
    caplog.set_level(logging.INFO, "warren.connection")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        acceptor = Acceptor(sys.maxsize, backlog=10)
        port = await acceptor.listen("127.0.0.1", 0, Greeter)
        before = loop.time()
        assert await greeting(port) == b"hello"
        assert loop.time() - before >= 3 * accepting.PAUSE_S
        acceptor.close()

    asyncio.run(scenario())
    # Three that fail, one that succeeds, one that finds nothing more.
    assert system.accepts <= 5
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and said[0].startswith("connections_refused reason=")


def test_a_socket_with_too_high_a_number_is_closed_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        acceptor = Acceptor(3, backlog=10)
        port = await acceptor.listen("127.0.0.1", 0, Greeter)
        for _ in range(3):
            try:
                assert await greeting(port) == b""
            except ConnectionResetError:
                continue
        acceptor.close()

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        'connections_refused reason="too many open files" descriptor_limit=3'
    ]


def test_a_closed_acceptor_accepts_no_more() -> None:
    async def scenario() -> None:
        acceptor = Acceptor(sys.maxsize, backlog=10)
        port = await acceptor.listen("127.0.0.1", 0, Greeter)
        acceptor.close()
        with pytest.raises(ConnectionRefusedError):
            await greeting(port)

    asyncio.run(scenario())


async def reachable(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def test_every_address_is_of_both_kinds() -> None:
    async def scenario() -> None:
        acceptor = Acceptor(sys.maxsize, backlog=10)
        port = await acceptor.listen("::", 0, Greeter)
        assert await reachable("127.0.0.1", port) and await reachable("::1", port)
        with pytest.raises(OSError) as refused:
            await Acceptor(sys.maxsize, backlog=10).listen("::", port, Greeter)
        assert refused.value.errno == errno.EADDRINUSE
        acceptor.close()

    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    asyncio.run(scenario())


@pytest.mark.parametrize("reason", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_where_ipv6_is_off_every_address_is_of_ipv4(
    monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    class WithoutIpv6(socket.socket):
        def bind(self, address: Any) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(reason, os.strerror(reason))
            super().bind(address)

    async def scenario() -> None:
        acceptor = Acceptor(sys.maxsize, backlog=10)
        port = await acceptor.listen("::", 0, Greeter)
        assert await reachable("127.0.0.1", port)
        acceptor.close()

    monkeypatch.setattr(accepting.socket, "socket", WithoutIpv6)
    asyncio.run(scenario())


def test_a_port_that_somebody_has_with_ipv4_is_not_chosen_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = iter([True, True, False])

    class HalfTaken(socket.socket):
        def bind(self, address: Any) -> None:
            if self.family == socket.AF_INET and next(refusals):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            super().bind(address)

    async def scenario() -> None:
        acceptor = Acceptor(sys.maxsize, backlog=10)
        port = await acceptor.listen("::", 0, Greeter)
        assert await reachable("127.0.0.1", port)
        acceptor.close()

    monkeypatch.setattr(accepting.socket, "socket", HalfTaken)
    asyncio.run(scenario())
    assert list(refusals) == []


def test_sockets_are_set_to_what_was_chosen() -> None:
    options = SocketOptions(
        nodelay=False, keepalive=True, send_buffer_bytes=8192, receive_buffer_bytes=4096, linger_s=7
    )
    with socket.socket() as connection:
        options.apply(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        # Linux doubles sizes, for its own use.
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 8192
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 4096
        linger = connection.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
        assert struct.unpack("ii", linger) == (1, 7)
