"""TLS listeners, logins by certificate, and certificates renewed while the node runs."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
from cryptography import x509
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPConnectionError

from warren import Broker
from warren.config import Listener, SslOptions

GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
LOOPBACK = (Listener("127.0.0.1", 0),)


class Files:
    """An authority, the server's certificate in files, and certificates for clients."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.directory = directory
        self.authority_file = directory / "ca.pem"
        self.certificate = directory / "server.pem"
        self.key = directory / "server.key"
        self.authority.cert_pem.write_to_path(self.authority_file)
        self.renew()

    def renew(self) -> None:
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(self.key)
        first, *others = issued.cert_chain_pems
        first.write_to_path(self.certificate)
        for other in others:
            other.write_to_path(self.certificate, append=True)

    def options(self, **changes: Any) -> SslOptions:
        return SslOptions(
            cacertfile=self.authority_file, certfile=self.certificate, keyfile=self.key, **changes
        )

    def client_context(self, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if certificate is not None:
            certificate.configure_cert(context)
        return context

    def client(self) -> trustme.LeafCert:
        return self.authority.issue_cert(
            "ann.example.org", common_name="ann", organization_unit_name="people"
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def parameters(
    broker: Any, context: ssl.SSLContext, credentials: Any = None
) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(
        "127.0.0.1",
        broker.tls_port,
        credentials=credentials or pika.PlainCredentials("guest", "guest"),
        ssl_options=pika.SSLOptions(context, "127.0.0.1"),
    )


def round_trip(connection: pika.BlockingConnection) -> None:
    """More than one TLS record each way."""
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    body = bytes(range(256)) * 2000
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def served_serial(broker: Any, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that new connections are shown."""
    with pika.BlockingConnection(parameters(broker, context)) as connection:
        sock = connection._impl._transport._sock  # pika has no public way to the socket
        shown = x509.load_der_x509_certificate(sock.getpeercert(binary_form=True))
        return shown.serial_number


def test_messages_travel_over_tls_and_plain_side_by_side(files: Files) -> None:
    with Broker(tls_listeners=LOOPBACK, ssl=files.options()) as broker:
        tls = parameters(broker, files.client_context())
        with pika.BlockingConnection(tls) as connection:
            round_trip(connection)
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            round_trip(connection)


def test_a_client_that_does_not_trust_the_certificate_gets_nowhere(files: Files) -> None:
    with Broker(tls_listeners=LOOPBACK, ssl=files.options()) as broker:
        with pytest.raises(ssl.SSLCertVerificationError):
            pika.BlockingConnection(parameters(broker, ssl.create_default_context()))
        assert broker.call(lambda node: len(node.clients)) == 0


def test_a_plain_client_at_the_tls_port_gets_nowhere(files: Files) -> None:
    with Broker(tls_listeners=LOOPBACK, ssl=files.options()) as broker:
        with pytest.raises(AMQPConnectionError):
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.tls_port))
        with pika.BlockingConnection(parameters(broker, files.client_context())) as connection:
            round_trip(connection)


def test_who_dawdles_in_the_tls_handshake_is_dropped(files: Files) -> None:
    options = files.options()
    with Broker(tls_listeners=LOOPBACK, ssl=options, ssl_handshake_timeout_ms=1000) as broker:
        for beginning in (b"", bytes.fromhex("16030102000100")):
            with socket.create_connection(("127.0.0.1", broker.tls_port), timeout=30) as idle:
                idle.sendall(beginning)
                with contextlib.suppress(ConnectionResetError):
                    assert idle.recv(1) == b""


def test_without_a_client_certificate_the_listener_refuses_where_it_must(files: Files) -> None:
    options = files.options(verify_peer=True, fail_if_no_peer_cert=True)
    with Broker(tls_listeners=LOOPBACK, ssl=options) as broker:
        with pytest.raises(AMQPConnectionError):
            pika.BlockingConnection(parameters(broker, files.client_context()))
        context = files.client_context(files.client())
        with pika.BlockingConnection(parameters(broker, context)) as connection:
            round_trip(connection)


def test_a_certificate_of_another_authority_is_refused(files: Files) -> None:
    options = files.options(verify_peer=True)
    with Broker(tls_listeners=LOOPBACK, ssl=options) as broker:
        stranger = trustme.CA().issue_cert("ann.example.org", common_name="ann")
        with pytest.raises(AMQPConnectionError):
            pika.BlockingConnection(parameters(broker, files.client_context(stranger)))


def distinguished_name(certificate: trustme.LeafCert) -> str:
    return x509.load_pem_x509_certificate(
        certificate.cert_chain_pems[0].bytes()
    ).subject.rfc4514_string()


@pytest.mark.parametrize(
    ("login_from", "name"),
    [
        ("distinguished_name", distinguished_name),
        ("common_name", lambda _: "ann"),
        ("subject_alternative_name", lambda _: "ann.example.org"),
    ],
    ids=["distinguished", "common", "alternative"],
)
def test_a_certificate_is_a_login(
    files: Files, login_from: str, name: Callable[[trustme.LeafCert], str]
) -> None:
    certificate = files.client()
    user = name(certificate)
    with Broker(
        tls_listeners=LOOPBACK,
        ssl=files.options(verify_peer=True),
        auth_mechanisms=("PLAIN", "EXTERNAL"),
        ssl_cert_login_from=login_from,
    ) as broker:
        external = parameters(broker, files.client_context(certificate), ExternalCredentials())
        # The certificate names a user, but there is none of that name yet.
        with pytest.raises(AMQPConnectionError):
            pika.BlockingConnection(external)
        broker.add_user(user, "password that nobody uses")
        broker.set_permissions(user)
        with pika.BlockingConnection(external) as connection:
            round_trip(connection)
            names = broker.call(lambda node: [client.user.name for client in node.clients])
            assert names == [user]


def test_connections_are_shown_with_what_tls_agreed_on(files: Files) -> None:
    context = files.client_context(files.client())
    with Broker(http_port=0, tls_listeners=LOOPBACK, ssl=files.options(verify_peer=True)) as broker:
        with pika.BlockingConnection(parameters(broker, context)):
            answer = http.client.HTTPConnection(broker.host, broker.http_port)
            answer.request("GET", "/api/connections", headers=GUEST)
            (row,) = json.loads(answer.getresponse().read())
            answer.close()
    assert (row["ssl"], row["ssl_protocol"], row["ssl_key_exchange"]) == (True, "tlsv1.3", "any")
    assert (row["ssl_hash"], "_" in row["ssl_cipher"]) == ("aead", True)
    assert row["peer_cert_subject"].startswith("CN=ann")
    assert "trustme" in row["peer_cert_issuer"] and " - " in row["peer_cert_validity"]


def test_external_without_a_certificate_is_refused(files: Files) -> None:
    with Broker(
        tls_listeners=LOOPBACK,
        ssl=files.options(verify_peer=True),
        auth_mechanisms=("PLAIN", "EXTERNAL"),
        ssl_cert_login_from="common_name",
    ) as broker:
        # pika does not say EXTERNAL without a certificate by itself.
        with pytest.raises(AMQPConnectionError, match="ACCESS_REFUSED"):
            pika.BlockingConnection(
                parameters(broker, files.client_context(), ExternalWithoutCertificate())
            )


class ExternalWithoutCertificate(ExternalCredentials):
    def response_for(self, start: Any) -> tuple[str, bytes]:
        return "EXTERNAL", b""


def test_external_is_not_offered_without_tls(files: Files, connect: Callable[..., Any]) -> None:
    with Broker(
        tls_listeners=LOOPBACK, ssl=files.options(), auth_mechanisms=("PLAIN", "EXTERNAL")
    ) as broker:
        peer = connect(broker, handshake=False)
        assert peer.start()["mechanisms"] == b"PLAIN"
        peer.abandon()


def test_renewed_certificates_are_shown_to_new_connections_after_sighup(
    files: Files, start_server: Callable[..., Any], until: Callable[..., None]
) -> None:
    server = start_server(
        config=(
            "listeners.ssl.1 = 127.0.0.1:0\n"
            f"ssl_options.certfile = {files.certificate}\n"
            f"ssl_options.keyfile = {files.key}\n"
            f"ssl_options.cacertfile = {files.authority_file}\n"
        )
    )
    context = files.client_context()
    first = served_serial(server, context)
    with pika.BlockingConnection(parameters(server, context)) as old:
        files.renew()
        server.signal(signal.SIGHUP)
        until(lambda: served_serial(server, context) != first)
        second = served_serial(server, context)
        # Who was connected before stays so.
        round_trip(old)

        # What cannot be read is reported, and the certificate in use stays.
        files.key.write_text("no key")
        server.signal(signal.SIGHUP)
        until(lambda: "certificate_not_reloaded" in server.log)
        assert served_serial(server, context) == second
    assert server.terminate() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("damage", ["missing", "no certificate"])
def test_a_certificate_that_is_no_good_keeps_the_node_from_starting(
    files: Files, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    if damage == "missing":
        files.certificate.unlink()
    else:
        files.certificate.write_text("no certificate")
    with caplog.at_level(logging.ERROR), pytest.raises((OSError, ssl.SSLError)):
        Broker(tls_listeners=LOOPBACK, ssl=files.options()).start()


def test_metrics_are_served_over_tls_to_those_with_a_certificate(files: Files) -> None:
    options = files.options(verify_peer=True, fail_if_no_peer_cert=True)
    with Broker(metrics_tls_listeners=LOOPBACK, metrics_ssl=options) as broker:
        ((_, port),) = broker._running.http_ports
        for context, welcome in (
            (files.client_context(files.client()), True),
            (files.client_context(), False),
        ):
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
            try:
                connection.request("GET", "/metrics")
                assert connection.getresponse().status == 200 and welcome
            except OSError:
                assert not welcome
            finally:
                connection.close()


def test_http_is_served_over_tls_and_its_certificate_renewed(files: Files) -> None:
    options = {"http_tls_listeners": LOOPBACK, "http_ssl": files.options()}
    with Broker(**options) as broker:
        management = broker._running.management
        assert management is not None
        port = management.https_ports[0]
        seen = []
        for _ in range(2):
            context = files.client_context()
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
            connection.request("GET", "/api/whoami", headers=GUEST)
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["name"]) == (200, "guest")
            seen.append(connection.sock.getpeercert(binary_form=True))
            connection.close()
            files.renew()
            broker.call(lambda node: management.reload_certificates())
        assert seen[0] != seen[1]
