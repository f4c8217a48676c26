"""Links over TLS with certificates on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl

import pytest
import trustme
from link_nodes import QUICK, LinkNode, on_loop, until

from warren.mirror.links.ports import FRAME_BYTES_MAX, EndReason


class Contexts:
    """The two contexts of a node whose certificate the authority issued."""

    def __init__(self, authority: trustme.CA, issued: trustme.LeafCert | None) -> None:
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.server.verify_mode = ssl.CERT_REQUIRED
        for context in (self.server, self.client):
            authority.configure_trust(context)
            if issued is not None:
                issued.configure_cert(context)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> Contexts:
    return Contexts(authority, authority.issue_cert("127.0.0.1"))


def node(name: str, tls: Contexts, **options: object) -> LinkNode:
    return LinkNode(name, server_tls=tls.server, client_tls=tls.client, **options)  # type: ignore[arg-type]


@on_loop
async def test_nodes_with_certificates_of_one_authority_exchange_frames(tls: Contexts) -> None:
    async with node("ann", tls) as ann, node("bob", tls) as bob:
        ann.dials(bob)
        bob.dials(ann)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        sent = [(1, bytes([number]) * (number * 1000)) for number in range(100)]
        for kind, payload in sent:
            ann.links.send("bob", kind, payload)
            bob.links.send("ann", kind, payload)
        await until(lambda: len(ann.frames("bob")) == len(bob.frames("ann")) == len(sent))
        assert ann.frames("bob") == bob.frames("ann") == sent
        assert ann.count("down") == bob.count("down") == 0


@on_loop
async def test_a_tls_link_that_is_not_read_is_congested_and_recovers(tls: Contexts) -> None:
    settings = QUICK._replace(timeout_s=60)
    async with node("ann", tls, settings=settings) as ann, node("bob", tls) as bob:
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        reading = bob.links._up["ann"]._transport
        assert reading is not None
        reading.pause_reading()
        sent = 0
        while not ann.count("congested"):
            ann.links.send("bob", 1, bytes(FRAME_BYTES_MAX))
            sent += 1
        assert ann.links.backlog_bytes("bob") > settings.backlog_high_bytes
        reading.resume_reading()
        await until(lambda: ann.count("congested") == 2 and len(bob.frames("ann")) == sent)
        assert ann.reports[-1] == ("congested", "bob", False)


@on_loop
async def test_a_node_without_a_certificate_does_not_get_as_far_as_the_secret(
    authority: trustme.CA, tls: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warren.cluster")
    async with node("ann", Contexts(authority, None)) as ann, node("bob", tls) as bob:
        ann.dials(bob)
        await until(lambda: any("link_tls_failed" in line for line in caplog.messages))
        assert not ann.reports and not bob.reports


@on_loop
async def test_a_certificate_of_another_authority_is_not_trusted(
    tls: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = trustme.CA()
    other = Contexts(stranger, stranger.issue_cert("127.0.0.1"))
    async with node("ann", tls) as ann, node("bob", other) as bob:
        ann.dials(bob)
        await until(
            lambda: any(
                line.startswith("link_tls_failed node=bob") and "certificate verify failed" in line
                for line in caplog.messages
            )
        )
        assert not ann.reports and not bob.reports


HINT = "the peer closed; its log says whether it took our certificate"


def said(caplog: pytest.LogCaptureFixture, *parts: str) -> bool:
    return any(all(part in line for part in parts) for line in caplog.messages)


@on_loop
async def test_both_sides_say_whose_certificate_is_wrong(
    authority: trustme.CA, tls: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warren.cluster")
    # It trusts the others, who do not trust it.
    wrong = Contexts(authority, trustme.CA().issue_cert("127.0.0.1"))
    async with node("ann", wrong) as ann, node("bob", tls) as bob:
        ann.dials(bob)
        await until(lambda: said(caplog, "link_tls_failed node=bob", HINT))
        await until(lambda: said(caplog, "link_tls_failed", "certificate verify failed"))
        assert not ann.reports and not bob.reports


@on_loop
async def test_who_shows_no_certificate_is_told_so(
    authority: trustme.CA, tls: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warren.cluster")
    async with node("ann", Contexts(authority, None)) as ann, node("bob", tls) as bob:
        ann.dials(bob)
        await until(lambda: said(caplog, "link_tls_failed node=bob", HINT))
        await until(lambda: said(caplog, "link_tls_failed", "the peer has shown no certificate"))


@on_loop
async def test_a_certificate_for_another_host_is_not_taken(
    authority: trustme.CA, tls: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = Contexts(authority, authority.issue_cert("elsewhere.example"))
    async with node("ann", tls) as ann, node("bob", elsewhere) as bob:
        ann.dials(bob)
        await until(lambda: said(caplog, "link_tls_failed node=bob", "not valid for '127.0.0.1'"))
        assert not ann.reports and not bob.reports


@on_loop
async def test_a_node_with_tls_and_one_without_say_what_is_between_them(
    tls: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warren.cluster")
    async with node("ann", tls) as ann, LinkNode("bob") as bob:
        ann.dials(bob)
        await until(lambda: said(caplog, "the peer speaks TLS, and this node does not"))
        caplog.clear()
        bob.dials(ann)
        await until(lambda: said(caplog, "link_tls_failed", "the peer does not speak TLS"))
        assert not ann.reports and not bob.reports


@on_loop
async def test_links_are_made_with_the_certificates_of_the_day(
    authority: trustme.CA, tls: Contexts
) -> None:
    # A new authority, as when the old one is replaced.
    later = trustme.CA()
    renewed = Contexts(later, later.issue_cert("127.0.0.1"))
    async with node("ann", tls) as ann, node("bob", tls) as bob:
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        for each in (ann, bob):
            each.links.use_certificates(renewed.server, renewed.client)
        # What is there stays.
        ann.links.send("bob", 1, b"as before")
        await until(lambda: bob.frames("ann") == [(1, b"as before")])
        async with node("cid", tls) as cid, node("dan", renewed) as dan:
            cid.dials(ann)
            dan.dials(ann)
            await until(lambda: dan.is_up("ann"))
            assert not cid.is_up("ann")
        assert ann.count("down") == 1


@on_loop
async def test_who_dialled_before_anybody_listened_is_answered(
    authority: trustme.CA, tls: Contexts
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as early:
        listener.setblocking(False)
        early.setblocking(False)
        early.connect_ex(listener.getsockname())
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = tls.client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        await loop.sock_sendall(early, outgoing.read())
        async with node("ann", tls, listen=listener):
            while True:
                answer = await loop.sock_recv(early, 1 << 16)
                assert answer, "it closed"
                incoming.write(answer)
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    continue
            assert client.getpeercert()


@on_loop
async def test_stalled_tls_handshakes_count_as_strangers(tls: Contexts) -> None:
    settings = QUICK._replace(handshake_s=60, strangers_max=8)
    async with node("ann", tls, settings=settings) as ann, node("bob", tls) as bob:
        stalled = [socket.socket() for _ in range(30)]
        try:
            for each in stalled:
                each.setblocking(False)
                await asyncio.get_running_loop().sock_connect(each, ("127.0.0.1", ann.links.port))
            await until(lambda: len(ann.links._sockets) == 8)
            bob.dials(ann)
            await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        finally:
            for each in stalled:
                each.close()
        await until(lambda: len(ann.links._sockets) == 1)


@on_loop
async def test_who_speaks_plainly_to_a_tls_port_hears_nothing_of_us(tls: Contexts) -> None:
    async with node("ann", tls) as ann, LinkNode("bob") as bob:
        bob.dials(ann)
        reader, writer = await asyncio.open_connection("127.0.0.1", ann.links.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            # TLS may say in an alert that it understood nothing.
            assert len(await reader.read()) <= 7
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        assert not ann.reports and not bob.reports


@on_loop
async def test_the_end_of_a_tls_link_is_told(tls: Contexts) -> None:
    async with node("bob", tls) as bob:
        async with node("ann", tls) as ann:
            ann.dials(bob)
            await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
            ann.links.send("bob", 1, b"last words")
        await until(lambda: bob.reasons() == [EndReason.PEER_STOPPED])
        assert bob.frames("ann") == [(1, b"last words")]
