"""G12: between two neighbours nothing is missing but what is on its way."""

from __future__ import annotations

from functools import partial

from gm_process import Process

from warren.mirror.gm.messages import NONE, Catchup, decode


def link_is_whole(left: Process, right: Process) -> bool:
    """G12: what the left one knows is what the right one knows and what is on its way to it.

    False when there is no such link at the moment; raises when something is missing.
    """
    links, network = right.member._links, right.world.network
    if left.member.view.right != right.address or right.member.view.left != left.address:
        return False
    if links.is_waiting or left.member.epoch < right.member.epoch:
        return False
    parts = [item for item in right.member._inbox if isinstance(item, partial)]
    frames = [item.args for item in parts if item.func == right.member._process]
    messages = [message for sender, message in frames if sender == left.address]
    on_way = [decode(item) for item in network.on_way(left.address, right.address) if _is(item)]
    messages += [frame.message for frame in on_way]
    expected = links._expected
    states = right.member.circulation.states
    owned = right.member.view.aliases | {right.address}
    shadow = {
        member: [state.acked if member in owned else state.last_pub, state.acked]
        for member, state in states.items()
    }
    for message in messages:
        if isinstance(message, Catchup):
            return False
        for entry in getattr(message, "entries", ()):
            assert expected is not None
            if message.position != expected:
                return False
            if entry.member in shadow:
                shadow[entry.member][0] += len(entry.pubs)
                if entry.acked != NONE:
                    shadow[entry.member][1] = entry.acked
        expected = expected + 1 if hasattr(message, "entries") else expected
    if expected != left.member._links.position + 1:
        return False
    for member, entry in left.member._news_waiting.items():
        if member in shadow:
            shadow[member][0] += len(entry.pubs)
            if entry.acked != NONE:
                shadow[member][1] = entry.acked
    for member, (last_pub, acked) in shadow.items():
        state = left.member.circulation.states.get(member)
        if state is not None:
            assert state.last_pub == last_pub, (left.address, right.address, member, last_pub)
            assert member in owned or state.acked == acked, (left.address, member, acked)
    return True


def _is(parcel: object) -> bool:
    return isinstance(parcel, bytes)
