"""Two ends of a link without a socket, and whoever sits between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from warren.mirror.links.handshake import Ended, Established, Identified
from warren.mirror.links.ports import Frame, Identity, LinkRole
from warren.mirror.links.protocol import Frames, LinkEvent, LinkProtocol

SECRET = b"the secret of this cluster"
TURNS_MAX = 1000

Tamper: TypeAlias = Callable[[bytes], bytes]


def identity(name: str, **changes: Any) -> Identity:
    """A node's identity; its node id follows from its name."""
    values: dict[str, Any] = {
        "name": name,
        "node_id": name.encode().hex()[:64],
        "incarnation": 1,
        "cluster_id": "meadow",
        "software": "warren/0",
        "capabilities": {"gm": 1},
    }
    return Identity(**{**values, **changes})


class End:
    """One end, agreeing to whoever is identified; all it said and what was reported."""

    def __init__(
        self,
        role: LinkRole,
        name: str,
        *,
        secret: bytes = SECRET,
        nonce: bytes | None = None,
        expected: str | None = None,
        agrees: bool = True,
        stamp: int = 7,
        **changes: Any,
    ) -> None:
        nonce = nonce if nonce is not None else (name[:1] * 32).encode()
        self.link = LinkProtocol(role, secret, identity(name, **changes), nonce, expected=expected)
        self.agrees = agrees
        self.stamp = stamp
        self.events: list[LinkEvent] = []
        self.said = b""

    def takes(self, data: bytes) -> None:
        self.note(self.link.receive_data(data))

    def note(self, events: Sequence[LinkEvent]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, Identified) and self.agrees:
                self.note(self.link.agree(self.stamp))

    def says(self) -> bytes:
        """What it has to say now."""
        octets = b"".join(self.link.take_output())
        self.said += octets
        return octets

    @property
    def peer(self) -> Identity | None:
        """Who it has a link with."""
        found = [event.peer for event in self.events if isinstance(event, Established)]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def ended(self) -> Ended | None:
        found = [event for event in self.events if isinstance(event, Ended)]
        assert len(found) <= 1 and (not found or self.events[-1] is found[0])
        return found[0] if found else None

    @property
    def frames(self) -> list[Frame]:
        return [
            frame for event in self.events if isinstance(event, Frames) for frame in event.frames
        ]


def dialler(name: str = "ann", **options: Any) -> End:
    return End(LinkRole.DIALLER, name, **options)


def acceptor(name: str = "bob", **options: Any) -> End:
    return End(LinkRole.ACCEPTOR, name, **options)


def same(octets: bytes) -> bytes:
    return octets


def talk(one: End, other: End, to_other: Tamper = same, to_one: Tamper = same) -> None:
    """Pass on what both say until they have said all; an end that is over is not heard again."""
    for _ in range(TURNS_MAX):
        words, answer = one.says(), b""
        if words:
            other.takes(to_other(words))
        answer = other.says()
        if answer:
            one.takes(to_one(answer))
        if not words and not answer:
            return
    raise AssertionError(f"they still talk after {TURNS_MAX} turns")


def linked() -> tuple[End, End]:
    """Two ends of a link that is up, with nothing left to say."""
    ann, bob = dialler(), acceptor()
    talk(ann, bob)
    assert ann.peer is not None and bob.peer is not None
    return ann, bob
