"""Which of two connections between the same two nodes stays."""

from __future__ import annotations

import random

import pytest
from link_network import Network
from link_nodes import LinkNode, on_loop
from link_pipe import identity

from warren.mirror.links.pairing import EstablishedLink, judge_acceptor, judge_dialler
from warren.mirror.links.ports import EndReason, LinkSettings

SETTINGS = LinkSettings(interval_s=1000.0, timeout_s=5000.0, redial_first_s=0.5, redial_max_s=2.0)
MOVES = 1000

ANN, BOB = identity("ann"), identity("bob")


def test_a_node_without_a_link_accepts_whoever_dials() -> None:
    assert judge_dialler("ann", BOB, 1, None, awaiting=False) is None
    assert judge_acceptor(BOB, None) is None


def test_of_two_that_dial_each_other_the_lower_name_is_heard() -> None:
    assert judge_dialler("ann", BOB, 1, None, awaiting=True) is EndReason.ALREADY_LINKED
    assert judge_dialler("bob", ANN, 1, None, awaiting=True) is None


@pytest.mark.parametrize(
    ("incarnation", "stamp", "verdict"),
    [
        (1, 4, EndReason.ALREADY_LINKED),
        (1, 5, EndReason.ALREADY_LINKED),
        (1, 6, None),
        (2, 1, None),
        (0, 9, EndReason.ALREADY_LINKED),
    ],
)
def test_a_dialler_that_has_the_link_no_more_gets_another_and_one_that_spoke_before_it_does_not(
    incarnation: int, stamp: int, verdict: EndReason | None
) -> None:
    peer = identity("bob", incarnation=incarnation)
    assert judge_dialler("ann", peer, stamp, EstablishedLink(BOB, 5), awaiting=False) is verdict


def test_a_name_that_is_taken_is_not_given_to_another_node() -> None:
    other = identity("bob", node_id="77", incarnation=9)
    standing = EstablishedLink(BOB, 5)
    assert judge_dialler("ann", other, 9, standing, awaiting=False) is EndReason.DUPLICATE_NAME
    assert judge_acceptor(other, standing) is EndReason.DUPLICATE_NAME


def test_a_node_that_came_up_by_dialling_us_is_not_linked_again_by_our_dialling() -> None:
    assert judge_acceptor(BOB, EstablishedLink(BOB, 5)) is EndReason.ALREADY_LINKED
    assert judge_acceptor(identity("bob", incarnation=2), EstablishedLink(BOB, 5)) is None


async def dial_at_once(seed: int, breaks: int) -> tuple[LinkNode, LinkNode]:
    """Two nodes dial each other while messages arrive in any order and connections break."""
    rng = random.Random(seed)
    network = Network(rng)
    ann, bob = network.node("ann", 1, SETTINGS), network.node("bob", 2, SETTINGS)
    to_dial = [(ann, "bob", 2), (bob, "ann", 1)]
    for _ in range(MOVES):
        chance = rng.random()
        if to_dial and chance < 0.2:
            node, name, port = to_dial.pop(rng.randrange(len(to_dial)))
            node.links.connect(name, "memory", port)
            await network.run()
        elif breaks and chance > 0.95:
            network.break_one()
            breaks -= 1
            network.clock.advance(rng.choice((0, SETTINGS.redial_max_s, SETTINGS.handshake_s)))
            await network.run()
        elif not await network.deliver_one() and not to_dial and not breaks:
            if ann.is_up("bob") and bob.is_up("ann"):
                break
            network.clock.advance(SETTINGS.redial_max_s)
            await network.run()
    for node in (ann, bob):
        node.check_reports()
    return ann, bob


@pytest.mark.parametrize("seed", range(10))
@on_loop
async def test_in_no_order_of_messages_do_two_that_dial_each_other_lose_their_link(
    seed: int,
) -> None:
    for turn in range(50):
        ann, bob = await dial_at_once(1000 * seed + turn, breaks=0)
        assert [ann.count("up"), bob.count("up")] == [1, 1], (seed, turn)
        assert [ann.count("down"), bob.count("down")] == [0, 0], (seed, turn)
        assert one_connection(ann, bob), (seed, turn)


@pytest.mark.parametrize("seed", range(10))
@on_loop
async def test_two_nodes_whose_connections_break_at_any_point_end_with_one_link(
    seed: int,
) -> None:
    for turn in range(30):
        ann, bob = await dial_at_once(1000 * seed + turn, breaks=6)
        assert ann.is_up("bob") and bob.is_up("ann"), (seed, turn)
        assert one_connection(ann, bob), (seed, turn)


def one_connection(ann: LinkNode, bob: LinkNode) -> bool:
    """Whether the link that each has is the same, and there is no other connection."""
    sockets = [*ann.links._sockets, *bob.links._sockets]
    transports = [socket._transport for socket in sockets]
    return len(transports) == 2 and getattr(transports[0], "other", None) is transports[1]
