"""What `mirror` sees of the links between nodes.

`Links` (`links.py`) speaks TCP and TLS; a simulation puts its own `NodeLinks` in its place.
The identity that two nodes tell each other and the reasons why a link ends are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Annotated, NamedTuple, Protocol, TypeAlias

import msgspec

PROTOCOL_VERSION = 1
"""Of what nodes say to each other once a link is up; the handshake has a version of its own."""

Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Counter: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

Frame: TypeAlias = tuple[int, bytes]
"""Kind and payload. Kinds are the user's, below `USER_KINDS`."""

Part: TypeAlias = bytes | memoryview
"""A part of a payload: nobody changes it after handing it over; a view is one of octets."""

USER_KINDS = 0xFF00
"""The kinds from here on are the link's own."""

FRAME_BYTES_MAX = 1 << 20
"""Octets of a payload. Frames of one link never overtake each other, so that one frame is how long
all the others wait: 8 ms at 1 Gbit/s. Who has more to send cuts it (see protocol.py)."""

LARGE_PART = 4096
"""Average octets of parts from which passing each on costs less than putting them together."""


class Identity(msgspec.Struct, frozen=True):
    """Who a node is. Of one node id, the higher incarnation is the later start of its process."""

    name: Name
    node_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,64}$")]
    incarnation: Counter
    cluster_id: Annotated[str, msgspec.Meta(max_length=255)]
    software: Annotated[str, msgspec.Meta(max_length=255)] = ""
    protocol_min: Counter = PROTOCOL_VERSION
    protocol_max: Counter = PROTOCOL_VERSION
    capabilities: dict[str, str | int | float | bool | None] = {}

    def common_protocol(self, other: Identity) -> int | None:
        """The highest protocol version both speak."""
        highest = min(self.protocol_max, other.protocol_max)
        lowest = max(self.protocol_min, other.protocol_min)
        return highest if highest >= lowest else None


class EndReason(StrEnum):
    """Why a connection between two nodes was not made, or a link went down."""

    # Before the peer has proved that it knows the secret; nothing is told to it.
    NOT_A_LINK = "not_a_link"
    HANDSHAKE_VERSION = "handshake_version"
    WRONG_SECRET = "wrong_secret"
    SECRET_NOT_ACCEPTED = "secret_not_accepted"
    CROWDED_OUT = "crowded_out"
    UNREACHABLE = "unreachable"
    TLS_FAILED = "tls_failed"
    HANDSHAKE_TIMEOUT = "handshake_timeout"

    # Told to the peer, which has proved it.
    WRONG_CLUSTER = "wrong_cluster"
    DUPLICATE_NAME = "duplicate_name"
    NO_COMMON_VERSION = "no_common_version"
    OURSELVES = "ourselves"
    ANOTHER_NODE = "another_node"
    ALREADY_LINKED = "already_linked"
    REFUSED = "refused"
    """For a reason of the peer's that we do not know."""

    # Of a link that was up.
    CONNECTION_LOST = "connection_lost"
    DAMAGED = "damaged"
    SILENT = "silent"
    NOT_READING = "not_reading"
    OVERRUN = "overrun"
    SUPERSEDED = "superseded"
    PEER_STOPPED = "peer_stopped"
    FORGOTTEN = "forgotten"
    STOPPED = "stopped"
    PAUSED = "paused"
    """It has lost the store of the cluster, and waits until that is back."""
    FAULT = "fault"


REFUSALS = frozenset(
    {
        EndReason.WRONG_CLUSTER,
        EndReason.DUPLICATE_NAME,
        EndReason.NO_COMMON_VERSION,
        EndReason.OURSELVES,
        EndReason.ANOTHER_NODE,
        EndReason.ALREADY_LINKED,
    }
)
"""Why a node that knows the secret gets no link."""


class Role(Enum):
    """Which side of a connection."""

    DIALLER = b"dialler"
    ACCEPTOR = b"acceptor"


class LinkSettings(NamedTuple):
    """Times and limits of the links of a node.

    A peer from which nothing comes is down after `timeout_s`, noticed up to `interval_s` later.
    Above `backlog_high_bytes` a link is congested, until `backlog_low_bytes`; a user that goes on
    sending all the same loses the link at `backlog_bytes_max`.
    """

    interval_s: float = 1.0
    timeout_s: float = 5.0
    handshake_s: float = 5.0
    redial_first_s: float = 0.1
    redial_max_s: float = 5.0
    strangers_max: int = 64
    backlog_high_bytes: int = 1 << 20
    backlog_low_bytes: int = 1 << 18
    backlog_bytes_max: int = 1 << 28

    @property
    def silent_ticks_max(self) -> int:
        """Whole intervals without a sign of life after which a peer is down."""
        return max(1, -int(-self.timeout_s // self.interval_s))


class LinkUser(NamedTuple):
    """Whom links report to. All are plain calls on the loop, and may use the links themselves.

    For each node `on_up` and `on_down` alternate; `on_frames` and `on_congested` come between them.
    `on_congested(node, True)` may come from within a `send`, so that who sends piece by piece
    notices. One that raises loses the link.
    """

    on_up: Callable[[str, Identity], None]
    on_down: Callable[[str, EndReason], None]
    on_frames: Callable[[str, list[Frame]], None]
    on_congested: Callable[[str, bool], None]


class NodeLinks(Protocol):
    """The links of one node to its peers, at most one to each, known by the peer's name.

    - Frames arrive in the order in which they were sent, without gaps, from `on_up` to some frame
      after which the link goes down: what is lost is a suffix. The next link starts afresh.
    - `on_up` comes before the first frame, `on_down` after the last; what arrived before the
      connection was lost is handed on first. Nothing arrives late from a link that was down.
    - A new incarnation of a peer comes up only after its predecessor was reported down.
    - Nothing is kept for a peer that is down.
    """

    def connect(self, node: str, host: str, port: int) -> None:
        """Have a link with the node from now on: dial it whenever there is none."""
        ...

    def forget(self, node: str) -> None:
        """Dial the node no longer, and take the link down. It may still dial us."""
        ...

    def send(self, node: str, kind: int, *parts: Part) -> bool:
        """Send the parts as one frame; False when the link is down.

        True says that the frame is on its way, not that it arrives. Raises ValueError for a kind
        that is not the user's and for more than `FRAME_BYTES_MAX` octets.
        """
        ...

    def backlog_bytes(self, node: str) -> int:
        """Octets the link has not yet given to the kernel; 0 when it is down."""
        ...

    def peers(self) -> dict[str, Identity]:
        """Who is up."""
        ...

    def is_up(self, node: str) -> bool:
        """Whether it is one of them."""
        ...
