"""Who does not know the secret: stalls, scans and guesses, and learns and harms nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import pytest
from link_nodes import QUICK, HandPeer, LinkNode, on_loop, until

from warren.core.log_line import event_line
from warren.mirror.links.handshake import HELLO
from warren.mirror.links.links import Links
from warren.mirror.links.ports import EndReason

WRONG = b"the secret of another cluster"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "warren.cluster")
    return caplog


def lines(log: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [line for line in log.messages if line.split()[0] == event]


async def answer_to(links: Links, words: bytes) -> bytes:
    """All that a node says to somebody who says this and then waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", links.port)
    octets = b""
    try:
        writer.write(words)
        with contextlib.suppress(ConnectionError):
            octets = await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return octets


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: warren\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"AMQP\x00\x00\x09\x01",
        b"\x00" * 100_000,
        HELLO.pack(b"\x00WARREN\n", 9, bytes(32)),
    ],
)
@on_loop
async def test_a_scanner_is_hung_up_on_without_a_word(
    words: bytes, log: pytest.LogCaptureFixture
) -> None:
    async with LinkNode("ann") as ann:
        assert await answer_to(ann.links, words) == b""
        assert not ann.links._strangers and not ann.reports
        assert len(log.messages) == 1 and "127.0.0.1" in log.messages[0]


@on_loop
async def test_a_stranger_that_says_nothing_hears_nothing_and_is_dropped_in_time() -> None:
    async with LinkNode("ann", settings=QUICK._replace(handshake_s=0.1)) as ann:
        assert await answer_to(ann.links, b"") == b""
        assert len(await answer_to(ann.links, HELLO.pack(b"\x00WARREN\n", 1, bytes(32)))) == (
            HELLO.size
        )


@on_loop
async def test_a_drip_of_octets_does_not_extend_the_time_of_a_stranger() -> None:
    async with LinkNode("ann", settings=QUICK._replace(handshake_s=0.2)) as ann:
        with HandPeer("mallory") as mallory:
            await mallory.dials(ann)
            await until(lambda: bool(ann.links._sockets))
            with contextlib.suppress(ConnectionError):
                for octet in mallory.end.says()[:-1]:
                    await mallory.sends_octets(bytes([octet]))
                    await asyncio.sleep(0.02)
            assert await mallory.reads() == b""
            await until(lambda: not ann.links._sockets)


@on_loop
async def test_stalled_strangers_are_limited_and_keep_no_peer_out() -> None:
    settings = QUICK._replace(handshake_s=60, strangers_max=64)
    async with LinkNode("ann", settings=settings) as ann, LinkNode("bob") as bob:
        stalled = [socket.socket() for _ in range(200)]
        try:
            for each in stalled:
                each.setblocking(False)
                await asyncio.get_running_loop().sock_connect(each, ("127.0.0.1", ann.links.port))
            await until(lambda: len(ann.links._strangers) == 64)
            assert len(ann.links._sockets) <= 200
            await until(lambda: len(ann.links._sockets) == 64)
            bob.dials(ann)
            await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
            assert len(ann.links._strangers) == 63
        finally:
            for each in stalled:
                each.close()
        await until(lambda: not ann.links._strangers)
        assert not ann.count("down") and not bob.count("down")


@on_loop
async def test_nodes_with_different_secrets_do_not_link_and_both_say_so_once(
    log: pytest.LogCaptureFixture,
) -> None:
    async with LinkNode("ann", secret=WRONG) as ann, LinkNode("bob") as bob:
        ann.dials(bob)
        attempts = 0

        def count(size: int) -> bytes:
            nonlocal attempts
            attempts += 1
            return bytes(size)

        ann.links._random_octets = count
        await until(lambda: attempts > 20)
        assert not ann.reports and not bob.reports
        (wrong,) = lines(log, "link_wrong_secret")
        assert "address=127.0.0.1:" in wrong and "ann" not in wrong
        (not_accepted,) = lines(log, "link_secret_not_accepted")
        assert "node=bob" in not_accepted
        assert len(log.messages) == 2


@pytest.mark.parametrize(
    ("changes", "event"),
    [
        ({"cluster_id": "moor"}, "link_wrong_cluster"),
        ({"name": "bob", "node_id": "77"}, "link_duplicate_name"),
        ({"protocol_min": 2, "protocol_max": 2}, "link_no_common_version"),
    ],
)
@on_loop
async def test_a_mismatch_is_logged_once_on_either_side(
    changes: dict[str, object], event: str, log: pytest.LogCaptureFixture
) -> None:
    async with LinkNode(**{"name": "ann", **changes}) as ann, LinkNode("bob") as bob:  # type: ignore[arg-type]
        ann.links.connect("bob", "127.0.0.1", bob.links.port)
        await until(lambda: ann.links._wanted["bob"].delay_s == QUICK.redial_max_s)
        assert not ann.reports and not bob.reports
        logged = lines(log, event)
        assert len(logged) == len(log.messages) == 2
        assert sum("told_by=peer" in line for line in logged) == 1


@on_loop
async def test_a_node_that_dials_itself_finds_out(log: pytest.LogCaptureFixture) -> None:
    async with LinkNode("ann") as ann:
        ann.links.connect("bob", "127.0.0.1", ann.links.port)
        await until(lambda: bool(lines(log, "link_ourselves")))
        assert not ann.reports


@on_loop
async def test_another_node_than_was_meant_is_not_linked(log: pytest.LogCaptureFixture) -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        ann.links.connect("carol", "127.0.0.1", bob.links.port)
        await until(lambda: bool(lines(log, "link_another_node")))
        assert not ann.reports and not bob.reports


@on_loop
async def test_the_log_says_when_a_link_comes_up_and_why_it_goes_down(
    log: pytest.LogCaptureFixture,
) -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        ann.links.forget("bob")
        await until(lambda: bob.count("down") == 1)
    assert [line.split(" address=")[0] for line in log.messages] == [
        event_line("link_up", node="ann"),
        event_line("link_up", node="bob"),
        event_line("link_down", node="bob", reason=EndReason.FORGOTTEN),
        event_line("link_down", node="ann", reason=EndReason.PEER_STOPPED, detail="forgotten"),
    ]
