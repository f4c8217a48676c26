"""Behind a load balancer that speaks the PROXY protocol."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from warren import Broker
from warren.compat_tests.raw_client import RawClient
from warren.config import Listener, SslOptions

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
REFUSED = (
    "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(proxy_protocol=True, handshake_timeout_ms=1000) as broker:
        broker.add_user("ann", "secret")
        broker.set_permissions("ann")
        yield broker


@pytest.fixture
def behind(broker: Broker, connect: Callable[..., RawClient]) -> Callable[[bytes], RawClient]:
    """A connection that begins with this header."""

    def open_client(header: bytes) -> RawClient:
        client = connect(broker, handshake=False)
        client.send_bytes(header)
        return client

    return open_client


def v2(family: int, addresses: bytes, command: int = 1, extensions: bytes = b"") -> bytes:
    rest = addresses + extensions
    return SIGNATURE + bytes((0x20 | command, family)) + struct.pack(">H", len(rest)) + rest


def v2_ipv4(source: str, extensions: bytes = b"") -> bytes:
    addresses = socket.inet_aton(source) + socket.inet_aton("192.0.2.1")
    return v2(0x11, addresses + struct.pack(">HH", 56324, 5672), extensions=extensions)


def v2_ipv6(source: str) -> bytes:
    addresses = socket.inet_pton(socket.AF_INET6, source) * 2
    return v2(0x21, addresses + struct.pack(">HH", 56324, 5672))


def peers(broker: Broker) -> list[tuple[str, int]]:
    """Host and port of every client, as the broker sees them."""
    clients = broker.call(lambda node: [client.peer for client in node.clients])
    return [(peer.host, peer.port) for peer in clients]


ANN = {"user": "ann", "password": "secret"}


@pytest.mark.parametrize(
    ("header", "host"),
    [
        (b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 5672\r\n", "203.0.113.7"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 5672\r\n", "2001:db8::7"),
        (v2_ipv4("203.0.113.7"), "203.0.113.7"),
        (v2_ipv4("203.0.113.7", b"\x04\x00\x10" + bytes(16)), "203.0.113.7"),
        (v2_ipv6("2001:db8::7"), "2001:db8::7"),
    ],
    ids=["v1", "v1-ipv6", "v2", "v2-extended", "v2-ipv6"],
)
def test_the_address_in_the_header_is_the_client(
    broker: Broker, behind: Callable[[bytes], RawClient], header: bytes, host: str
) -> None:
    client = behind(header).open(**ANN)
    assert peers(broker) == [(host, 56324)]
    channel = client.channel()  # type: ignore[attr-defined]
    queue = channel.own_queue()
    channel.publish(b"through", queue)
    channel.got(queue, b"through")
    client.close()


@pytest.mark.parametrize(
    "header", [b"PROXY UNKNOWN\r\n", v2(0x00, b"", command=0)], ids=["v1", "v2"]
)
def test_a_balancer_may_speak_for_itself(
    broker: Broker, behind: Callable[[bytes], RawClient], header: bytes
) -> None:
    """Its health checks come without an address: its own counts."""
    client = behind(header).open()
    assert [host for host, _ in peers(broker)] == ["127.0.0.1"]
    client.close()


def test_header_and_protocol_may_come_in_pieces(
    broker: Broker, behind: Callable[[bytes], RawClient]
) -> None:
    header = v2_ipv4("203.0.113.7")
    client = behind(header[:1])
    for octet in header[1:]:
        client.send_bytes(bytes([octet]))
    client.open(**ANN)
    assert peers(broker) == [("203.0.113.7", 56324)]
    client.close()


def test_header_and_protocol_may_come_at_once(behind: Callable[[bytes], RawClient]) -> None:
    client = behind(b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 5672\r\nAMQP\x00\x00\x09\x01")
    client.expect("connection.start")
    client.send_start_ok("ann", "secret")
    client.tune()
    client.send_method(0, "connection.open", virtual_host="/")
    client.expect("connection.open-ok")
    client.close()


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 not.an.address 192.0.2.1 1 2\r\n",
        b"PROXY " + b"x" * 200,
        SIGNATURE + b"\x21\x11" + struct.pack(">H", 65535),
        SIGNATURE + b"\x31\x11" + struct.pack(">H", 12) + bytes(12),
    ],
    ids=["none", "http", "bad-address", "endless", "huge", "version-3"],
)
def test_without_a_proper_header_the_socket_is_dropped(
    broker: Broker, behind: Callable[[bytes], RawClient], header: bytes
) -> None:
    behind(header).expect_socket_closed()
    # The next one is served.
    behind(v2_ipv4("127.0.0.1")).open().close()


def test_who_sends_no_header_in_time_is_dropped(behind: Callable[[bytes], RawClient]) -> None:
    for beginning in (b"", b"PROXY TCP4 203.0", SIGNATURE[:5]):
        behind(beginning).expect_socket_closed()


@pytest.mark.parametrize(
    "header",
    [b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 5672\r\n", v2_ipv6("2001:db8::7")],
    ids=["v1", "v2"],
)
def test_guest_may_not_come_from_afar_through_a_balancer_on_the_same_machine(
    behind: Callable[[bytes], RawClient], header: bytes
) -> None:
    client = behind(header)
    client.start()
    client.send_start_ok()
    client.expect_close(403, REFUSED)
    client.abandon()


def test_guest_may_come_from_the_loopback_interface(behind: Callable[[bytes], RawClient]) -> None:
    behind(v2_ipv4("127.0.0.1")).open().close()


def test_a_node_without_the_option_takes_no_header(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    client = connect(warren_broker, handshake=False)
    client.send_bytes(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n")
    assert client.read_bytes(8) == b"AMQP\x00\x00\x09\x01"
    client.expect_socket_closed()


class TestTls:
    """The balancer's header comes before the client's TLS."""

    @pytest.fixture
    def certificate(self) -> trustme.CA:
        return trustme.CA()

    @pytest.fixture
    def tls_broker(self, certificate: trustme.CA, tmp_path: Path) -> Iterator[Broker]:
        issued = certificate.issue_cert("localhost")
        issued.private_key_pem.write_to_path(tmp_path / "key.pem")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        ssl_options = SslOptions(certfile=tmp_path / "cert.pem", keyfile=tmp_path / "key.pem")
        listeners = (Listener("127.0.0.1", 0),)
        with Broker(
            proxy_protocol=True,
            tls_listeners=listeners,
            ssl=ssl_options,
            ssl_handshake_timeout_ms=1000,
        ) as broker:
            yield broker

    @pytest.mark.parametrize("cut", [0, 1, 13, 20])
    def test_the_client_is_where_the_balancer_says(
        self, tls_broker: Broker, certificate: trustme.CA, cut: int
    ) -> None:
        context = ssl.create_default_context()
        certificate.configure_trust(context)
        header = v2_ipv4("198.51.100.7")
        with socket.create_connection(("127.0.0.1", tls_broker.tls_port), timeout=30) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in (header[:cut], header[cut:]):
                plain.sendall(piece)
            with context.wrap_socket(plain, server_hostname="localhost") as client:
                client.sendall(b"AMQP\x00\x00\x09\x01")
                assert client.recv(7)[:1] == b"\x01", "connection.start"
                # Nobody has logged in yet: the listener knows the connection, the node does not.
                (protocol,) = tls_broker._running._listener._protocols
                assert protocol._connection is not None
                peer, tls = protocol._connection.peer.host, protocol._connection.peer.tls
                assert (peer, tls) == ("198.51.100.7", True)

    @pytest.mark.parametrize("beginning", [b"", b"PRO", b"\x16\x03\x01\x02\x00\x01" * 5])
    def test_who_sends_no_header_is_dropped(self, tls_broker: Broker, beginning: bytes) -> None:
        with socket.create_connection(("127.0.0.1", tls_broker.tls_port), timeout=30) as client:
            client.sendall(beginning)
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass
