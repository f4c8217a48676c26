"""Links between nodes over real sockets: coming up, order, going down, and which one is kept."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from link_nodes import QUICK, HandPeer, LinkNode, on_loop, until
from link_pipe import identity

from warren.mirror.links.frames import Control, FrameReader
from warren.mirror.links.ports import FRAME_BYTES_MAX, EndReason, Frame, Identity, LinkSettings
from warren.mirror.links.socket import CLOSE_GRACE_S
from warren.mirror.links.traffic import LinkTraffic


@on_loop
async def test_two_nodes_have_one_link_whoever_dials() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        bob.dials(ann)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        assert ann.links.peers() == {"bob": identity("bob")}
        assert bob.links.peers() == {"ann": identity("ann")}
    assert ann.reasons() == [EndReason.PEER_STOPPED]
    assert bob.reasons() == [EndReason.STOPPED]


@on_loop
async def test_three_nodes_that_all_dial_all_talk_to_all() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob, LinkNode("carol") as carol:
        nodes = (ann, bob, carol)
        for node in nodes:
            for other in nodes:
                if other is not node:
                    node.dials(other)
        await until(lambda: all(len(node.links.peers()) == 2 for node in nodes))
        for node in nodes:
            for other in nodes:
                if other is not node:
                    assert node.links.send(other.name, 5, node.name.encode())
        await until(lambda: all(node.count("frames") == 2 for node in nodes))
        assert carol.frames("ann") == [(5, b"ann")]
        assert [node.count("up") for node in nodes] == [2, 2, 2]


@on_loop
async def test_frames_arrive_in_order_and_whole_in_both_directions() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        frames = [(number % 99, b"%d " % number * (number % 700)) for number in range(5000)]
        for number, (kind, payload) in enumerate(frames):
            ann.links.send("bob", kind, payload)
            bob.links.send("ann", kind, payload[:9], memoryview(payload)[9:])
            if number % 50 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(ann.frames("bob")) == len(bob.frames("ann")) == len(frames))
        assert ann.frames("bob") == frames
        assert bob.frames("ann") == frames


@on_loop
async def test_a_node_that_is_not_up_is_sent_nothing() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        assert not ann.links.send("bob", 1, b"too early")
        assert ann.links.backlog_bytes("bob") == 0
        ann.dials(bob)
        assert not ann.links.send("bob", 1, b"still too early")
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        assert ann.links.send("bob", 1, b"in time")
        await until(lambda: bool(bob.frames("ann")))
        ann.links.forget("bob")
        assert not ann.links.send("bob", 1, b"too late")
        await until(lambda: bob.count("down") == 1)
        assert bob.frames("ann") == [(1, b"in time")]


@on_loop
async def test_frames_may_be_sent_from_within_on_up() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        for node, other in ((ann, "bob"), (bob, "ann")):

            def greet(peer: str, who: Identity, node: LinkNode = node) -> None:
                LinkNode.on_up(node, peer, who)
                assert node.links.send(peer, 1, b"hello")

            node.links._user = node.links._user._replace(on_up=greet)
            assert other
        ann.dials(bob)
        await until(lambda: bool(ann.frames("bob") and bob.frames("ann")))


@on_loop
async def test_nodes_that_dial_each_other_at_once_keep_one_link_and_never_lose_it() -> None:
    for turn in range(100):
        # Every second time with a head start for one of them, of a growing number of turns.
        async with LinkNode("ann") as ann, LinkNode("bob") as bob:
            first, second = (ann, bob) if turn % 4 < 2 else (bob, ann)
            first.dials(second)
            if turn % 2:
                for _ in range(turn // 4):
                    await asyncio.sleep(0)
            second.dials(first)
            await until(lambda ann=ann, bob=bob: ann.is_up("bob") and bob.is_up("ann"))  # type: ignore[misc]
            # Whatever else was under way comes to its end.
            await until(lambda ann=ann, bob=bob: settled(ann, bob))  # type: ignore[misc]
            assert ann.links.send("bob", 1, b"ping") and bob.links.send("ann", 1, b"pong")
            await until(lambda ann=ann, bob=bob: bool(ann.frames("bob") and bob.frames("ann")))  # type: ignore[misc]
            assert [ann.count("up"), bob.count("up")] == [1, 1], turn
            assert [ann.count("down"), bob.count("down")] == [0, 0], turn


def settled(*nodes: LinkNode) -> bool:
    """Whether each node has one connection, and dials nobody."""
    return all(len(node.links._sockets) == 1 and not node.links._dials for node in nodes)


@on_loop
async def test_a_link_that_is_lost_comes_back() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        ann.dials(bob)
        for turn in range(1, 6):
            await until(lambda turn=turn: ann.count("up") == bob.count("up") == turn)  # type: ignore[misc]
            (bob if turn % 2 else ann).links._up["ann" if turn % 2 else "bob"].abort()
            await until(lambda turn=turn: ann.count("down") == bob.count("down") == turn)  # type: ignore[misc]
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))


@on_loop
async def test_a_node_that_is_not_there_is_dialled_until_it_is() -> None:
    async with LinkNode("ann") as ann:
        async with LinkNode("bob") as bob:
            port = bob.links.port
        ann.links.connect("bob", "127.0.0.1", port)
        await until(lambda: ann.links._wanted["bob"].delay_s == QUICK.redial_max_s)
        async with LinkNode("bob", listen=("127.0.0.1", port)) as bob:
            await until(lambda: ann.is_up("bob") and bob.is_up("ann"))


@on_loop
async def test_a_node_that_moved_is_dialled_where_it_is_now() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        ann.links.connect("bob", "127.0.0.1", 1)
        ann.dials(bob)
        await until(lambda: ann.is_up("bob"))


@on_loop
async def test_a_forgotten_node_is_not_dialled_again() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        ann.links.forget("bob")
        assert ann.reasons() == [EndReason.FORGOTTEN]
        await until(lambda: bob.count("down") == 1)
        assert bob.reasons() == [EndReason.PEER_STOPPED]
        assert not ann.links._wanted and not ann.links._dials
        bob.dials(ann)
        await until(lambda: ann.is_up("bob"))


@on_loop
async def test_a_node_may_be_forgotten_while_it_is_being_dialled() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        for turns in range(12):
            ann.dials(bob)
            for _ in range(turns):
                await asyncio.sleep(0)
            ann.links.forget("bob")
            await until(lambda: not ann.links._sockets and not ann.links._dials)
        await until(lambda: not bob.links._sockets)


@on_loop
async def test_a_node_may_stop_at_any_moment_of_dialling_and_need_not_wait() -> None:
    async with LinkNode("bob") as bob:
        for turns in range(40):
            async with LinkNode("ann") as ann:
                ann.dials(bob)
                for _ in range(turns):
                    await asyncio.sleep(0)
                began = asyncio.get_running_loop().time()
                await ann.links.stop()
                assert not ann.links._sockets
                assert asyncio.get_running_loop().time() - began < CLOSE_GRACE_S, turns
            await until(lambda: not bob.links._sockets)


@on_loop
async def test_a_new_incarnation_comes_up_after_the_old_one_was_reported_down() -> None:
    async with LinkNode("ann") as ann:
        with HandPeer("bob") as old, HandPeer("bob", incarnation=2) as new:
            await old.links(ann)
            await until(lambda: ann.is_up("bob"))
            await new.links(ann)
            messages: list[Frame] = []
            controls = FrameReader().read(await old.reads_to_end(), messages)
            assert not messages and {kind for kind, _ in controls} <= {Control.HEARTBEAT}
            assert [
                (what, getattr(value, "incarnation", value)) for what, _, value in ann.reports
            ] == [
                ("up", 1),
                ("down", EndReason.SUPERSEDED),
                ("up", 2),
            ]


@on_loop
async def test_a_former_incarnation_does_not_displace_the_new_one() -> None:
    async with LinkNode("ann") as ann:
        with HandPeer("bob", incarnation=2) as new, HandPeer("bob", incarnation=1) as old:
            await new.links(ann)
            await old.dials(ann)
            for _ in range(3):
                await old.writes()
                await old.reads()
            assert old.end.ended is not None
            assert old.end.ended.reason is EndReason.ALREADY_LINKED and old.end.ended.by_peer
            assert ann.count("down") == 0


@on_loop
async def test_a_peer_that_lost_the_link_before_we_did_gets_a_new_one() -> None:
    async with LinkNode("ann") as ann:
        with HandPeer("bob", stamp=1) as first, HandPeer("bob", stamp=2) as second:
            await first.links(ann)
            await second.links(ann)
            await until(lambda: ann.count("up") == 2)
            assert ann.reasons() == [EndReason.SUPERSEDED]


@on_loop
async def test_two_nodes_of_one_name_are_told_apart_by_their_ids() -> None:
    async with LinkNode("ann") as ann:
        with HandPeer("bob") as bob, HandPeer("bob", node_id="77", incarnation=9) as other:
            await bob.links(ann)
            await other.dials(ann)
            for _ in range(3):
                await other.writes()
                await other.reads()
            assert other.end.ended is not None
            assert other.end.ended.reason is EndReason.DUPLICATE_NAME
            assert ann.count("down") == 0 and ann.links.peers() == {"bob": identity("bob")}


@on_loop
async def test_what_came_before_the_loss_of_a_connection_is_handed_on_before_it_is_reported() -> (
    None
):
    async with LinkNode("ann") as ann:
        with HandPeer("bob") as bob:
            await bob.links(ann)
            for number in range(2000):
                bob.end.link.send(3, (b"%d" % number,))
            await bob.writes()
        await until(lambda: ann.count("down") == 1)
        assert ann.frames("bob") == [(3, b"%d" % number) for number in range(2000)]
        assert ann.reports[-1] == ("down", "bob", EndReason.CONNECTION_LOST)


@on_loop
async def test_a_user_that_raises_loses_the_link_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob, LinkNode("carol") as carol:

        def fail(node: str, frames: object) -> None:
            raise RuntimeError("a fault of the user's")

        ann.links._user = ann.links._user._replace(on_frames=fail)
        bob.dials(ann)
        carol.dials(ann)
        await until(lambda: ann.is_up("bob", "carol") and bob.is_up("ann"))
        bob.links.send("ann", 1, b"x")
        await until(lambda: ann.reasons() == [EndReason.FAULT])
        assert ann.is_up("carol")
    assert "link_fault" in caplog.text


@on_loop
async def test_a_sender_piece_by_piece_learns_of_congestion_while_it_sends() -> None:
    settings = QUICK._replace(backlog_high_bytes=1 << 18, backlog_low_bytes=1 << 16)
    async with LinkNode("ann", settings=settings) as ann:
        with HandPeer("bob") as bob:
            await bob.links(ann)
            piece, sent = bytes(64 * 1024), 0
            while not ann.count("congested"):
                assert ann.links.send("bob", 1, piece)
                sent += 1
            assert ann.links.backlog_bytes("bob") <= 8 * settings.backlog_high_bytes
            assert ann.reports[-1] == ("congested", "bob", True)
            ann.links.send("bob", 2, b"end")
            while (2, b"end") not in bob.end.frames:
                assert await bob.reads(1 << 20)
                bob.end.note(bob.end.link.tick())
                await bob.writes()
            assert bob.end.frames == [(1, piece)] * sent + [(2, b"end")]
            await until(lambda: ann.reports[-1] == ("congested", "bob", False))
            assert ann.links.backlog_bytes("bob") <= settings.backlog_low_bytes
            assert ann.count("congested") == 2


@on_loop
async def test_a_user_that_ignores_congestion_loses_the_link() -> None:
    settings = QUICK._replace(backlog_bytes_max=1 << 24, timeout_s=60)
    async with LinkNode("ann", settings=settings) as ann:
        with HandPeer("bob") as bob:
            await bob.links(ann)
            while ann.links.send("bob", 1, bytes(FRAME_BYTES_MAX)):
                await asyncio.sleep(0)
            assert ann.reasons() == [EndReason.OVERRUN]


@on_loop
async def test_a_peer_that_falls_silent_is_reported_down() -> None:
    async with LinkNode("ann") as ann:
        with HandPeer("bob") as bob:
            await bob.links(ann)
            began = asyncio.get_running_loop().time()
            await until(lambda: ann.count("down") == 1)
            took_s = asyncio.get_running_loop().time() - began
            assert ann.reasons() == [EndReason.SILENT]
            assert took_s >= QUICK.timeout_s * 0.9


@on_loop
async def test_a_peer_that_beats_but_never_reads_is_reported_down() -> None:
    async with LinkNode("ann") as ann:
        with HandPeer("bob") as bob:
            await bob.links(ann)

            async def beat() -> None:
                while True:
                    bob.end.link._silent_ticks = 0
                    bob.end.note(bob.end.link.tick())
                    await bob.writes()
                    await asyncio.sleep(QUICK.interval_s / 2)

            beating = asyncio.create_task(beat())
            await until(lambda: ann.count("down") == 1)
            assert ann.reasons() == [EndReason.NOT_READING]
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


@on_loop
async def test_idle_nodes_stay_linked_for_many_times_the_timeout() -> None:
    settings = LinkSettings(interval_s=0.02, timeout_s=0.1)
    async with LinkNode("ann", settings=settings) as ann, LinkNode("bob", settings=settings) as bob:
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        heard = ann.links._up["bob"].link
        await until(lambda: heard._received > 16 * 60)
        assert not ann.count("down") and not bob.count("down")


@on_loop
async def test_the_end_of_a_node_is_noticed_at_once_and_leaves_nothing_open() -> None:
    ann = LinkNode("ann")
    async with LinkNode("bob") as bob:
        async with ann:
            ann.dials(bob)
            bob.dials(ann)
            await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        await until(lambda: bob.reasons() == [EndReason.PEER_STOPPED])
        assert not ann.links._sockets and not ann.links._dials
    gc.collect()


@on_loop
async def test_a_peer_that_does_not_take_our_last_words_does_not_hold_us_up() -> None:
    async with LinkNode("ann", settings=QUICK._replace(timeout_s=60)) as ann:
        with HandPeer("bob") as bob:
            await bob.links(ann)
            while not ann.count("congested"):
                ann.links.send("bob", 1, bytes(FRAME_BYTES_MAX))
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await ann.links.stop()


@pytest.mark.parametrize("changes", [{"secret": b"short"}, {"node_id": "no hex"}])
@on_loop
async def test_what_no_peer_would_accept_is_refused_at_once(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        LinkNode("ann", **changes)


@on_loop
async def test_what_links_carry_is_counted_also_when_they_are_down() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        assert ann.links.traffic("bob") == LinkTraffic()
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        for _ in range(3):
            ann.links.send("bob", 1, b"x" * 1000)
        await until(lambda: len(bob.frames("ann")) == 3)
        sent, received = ann.links.traffic("bob"), bob.links.traffic("ann")
        assert sent.up and received.up
        assert (sent.sent_frames, received.received_frames) == (3, 3)
        assert sent.received_frames == received.sent_frames == 0
        assert sent.sent_octets > 3000 and received.received_octets > 3000
        assert sent.round_trip_s is not None and 0 < sent.round_trip_s < 10
        ann.links.forget("bob")
        await until(lambda: not bob.is_up("ann"))
        past = bob.links.traffic("ann")
        assert not past.up and past.lost == 1 and past.round_trip_s is None
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        ann.links.send("bob", 1, b"one more")
        await until(lambda: len(bob.frames("ann")) == 4)
        now = bob.links.traffic("ann")
        assert (now.received_frames, now.lost) == (4, 1)
        assert now.received_octets > past.received_octets >= received.received_octets


@on_loop
async def test_a_node_that_pauses_says_so() -> None:
    async with LinkNode("ann") as ann, LinkNode("bob") as bob:
        ann.dials(bob)
        await until(lambda: ann.is_up("bob") and bob.is_up("ann"))
        await bob.links.stop(EndReason.PAUSED)
        await until(lambda: not ann.is_up("bob"))
        assert ann.links.paused == {"bob"}
        assert bob.reasons() == [EndReason.PAUSED]
