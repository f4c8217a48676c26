"""Which of two connections between the same two nodes is the link.

Both nodes may dial at once, and one may dial anew before the other noticed that their link is gone.
The acceptor of a connection decides (its Acceptance is what makes a link), by two rules.

**Stamps.** Every node counts the links it agrees to, and says the number: the dialler in its
Introduction, the acceptor in its Acceptance. No node introduces itself as a dialler, and so takes a
new number, while it has a link to that node. So a dialler with a higher number than the link that
we have has lost that link, even if we have not noticed; one with a lower number said so before that
link was made, and its connection is the one to drop. A higher incarnation is higher than any number
of the one before.

**Names.** Of two nodes that dial each other, the one whose name is lower is heard: while it waits
for the other's word on the connection it dialled, it refuses the connection the other one dialled.
The other one gives its own up when it accepts. So one connection is left, whichever message comes
first, and none that was up is taken down for it.

    lower: introduces itself on P           higher: introduces itself on Q
    lower: refuses Q, P waits               higher: accepts P, gives Q up
    lower: up on P; Q's introduction, if it comes only now, has a number below P's: refused

Should the lower one give up waiting on P, which ends P, it accepts Q like any other.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.mirror.links.ports import EndReason, Identity


class EstablishedLink(NamedTuple):
    """A link that is up: the peer, and the peer's number for it."""

    peer: Identity
    stamp: int


def judge_dialler(
    own_name: str, peer: Identity, stamp: int, standing: EstablishedLink | None, awaiting: bool
) -> EndReason | None:
    """Whether to accept a node that dialled us: None, or why not.

    `standing` is the link with a node of that name; `awaiting` says that we introduced ourselves
    on a connection that we dialled to it, and have no word yet.
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
    """Whether to go on with a node that we dialled: None, or why not."""
    if standing is None:
        return None
    if peer.node_id != standing.peer.node_id:
        return EndReason.DUPLICATE_NAME
    if peer.incarnation <= standing.peer.incarnation:
        return EndReason.ALREADY_LINKED
    return None
