"""The choice between two connections of the same two nodes: one of them is the link.

Both nodes may dial at once, and one may dial anew before the other noticed that their link is gone.
The acceptor of a connection decides by two rules; its Acceptance makes the connection a link.

**Stamps.** Every node counts the links that it agrees to, and tells the number: the dialler in its
Introduction, the acceptor in its Acceptance. While a dialler has a link to a node, it does not
introduce itself to that node, and so takes no new number. So if a dialler introduces itself with a
higher number than that of the link we have, it has lost that link, even if we have not noticed. A
dialler with a lower number introduced itself before that link was made, and its connection is
dropped. A later incarnation counts as higher than any number of an earlier one.

**Names.** If two nodes dial each other, the connection of the node with the lower name wins. While
that node waits for the other's Acceptance, it refuses the connection that the other one dialled.
The other one gives up its own connection when it accepts. So one connection is left, whichever
message comes first, and no connection that was up is taken down.

    lower: introduces itself on P           higher: introduces itself on Q
    lower: refuses Q, P waits               higher: accepts P, gives Q up
    lower: up on P; Q's introduction, if it comes only now, has a number below P's: refused

If the lower one gives up waiting on P, which ends P, it accepts Q like any other connection.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.mirror.links.ports import EndReason, Identity


class EstablishedLink(NamedTuple):
    """A link that is up: the peer, and the peer's number for the link."""

    peer: Identity
    stamp: int


def judge_dialler(
    own_name: str, peer: Identity, stamp: int, standing: EstablishedLink | None, awaiting: bool
) -> EndReason | None:
    """The reason to refuse a node that dialled us; None to accept it.

    `standing` is the link with a node of that name, if any. `awaiting` says that we introduced
    ourselves on a connection that we dialled to it, and wait for its Acceptance.
    """
    if standing is not None:
        if peer.node_id != standing.peer.node_id:
            return EndReason.DUPLICATE_NAME
        if (peer.incarnation, stamp) <= (standing.peer.incarnation, standing.stamp):
            return EndReason.ALREADY_LINKED
    if awaiting and own_name < peer.name:
        return EndReason.ALREADY_LINKED
    return None


def judge_acceptor(peer: Identity, standing: EstablishedLink | None) -> EndReason | None:
    """The reason not to go on with a node that we dialled; None to go on."""
    if standing is None:
        return None
    if peer.node_id != standing.peer.node_id:
        return EndReason.DUPLICATE_NAME
    if peer.incarnation <= standing.peer.incarnation:
        return EndReason.ALREADY_LINKED
    return None
