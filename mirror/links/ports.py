"""The links between nodes, as the other rooms of `mirror` see them.

`Links` (`links.py`) speaks TCP and TLS; a simulation has another `NodeLinks` in its place. Both
use the same identities, and the same reasons why a link ends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Annotated, NamedTuple, Protocol, TypeAlias

import msgspec

PROTOCOL_VERSION = 1
"""The version of the frames on a link that is up; the handshake has a version of its own."""

Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Counter: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

Frame: TypeAlias = tuple[int, bytes]
"""Kind and payload. Kinds are the user's, below `USER_KINDS`."""

Part: TypeAlias = bytes | memoryview
"""A part of a payload. It must not be changed after it was handed over; a view is of octets."""

USER_KINDS = 0xFF00
"""Kinds from this number on are the link's own."""

FRAME_BYTES_MAX = 1 << 20
"""Octets of a payload. Frames of one link never overtake each other, so one frame of this size
delays the others by 8 ms at 1 Gbit/s. The sender cuts longer payloads (see protocol.py)."""

LARGE_PART = 4096
"""Octets. If parts have more than this on average, passing them on one by one costs less than
joining them."""


class Identity(msgspec.Struct, frozen=True):
    """Name, id and start of a node, and its versions. A later start has a higher incarnation."""

    name: Name
    node_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,64}$")]
    incarnation: Counter
    cluster_id: Annotated[str, msgspec.Meta(max_length=255)]
    software: Annotated[str, msgspec.Meta(max_length=255)] = ""
    protocol_min: Counter = PROTOCOL_VERSION
    protocol_max: Counter = PROTOCOL_VERSION
    capabilities: dict[str, str | int | float | bool | None] = {}

    def common_protocol(self, other: Identity) -> int | None:
        """The highest protocol version that both nodes speak; None if there is none."""
        highest = min(self.protocol_max, other.protocol_max)
        lowest = max(self.protocol_min, other.protocol_min)
        return highest if highest >= lowest else None


class EndReason(StrEnum):
    """Why a connection between two nodes was not made, or a link went down."""

    # Reasons before the peer has proved that it knows the secret; it is not told why.
    NOT_A_LINK = "not_a_link"
    HANDSHAKE_VERSION = "handshake_version"
    WRONG_SECRET = "wrong_secret"
    SECRET_NOT_ACCEPTED = "secret_not_accepted"
    CROWDED_OUT = "crowded_out"
    UNREACHABLE = "unreachable"
    TLS_FAILED = "tls_failed"
    HANDSHAKE_TIMEOUT = "handshake_timeout"

    # Refusals, told to a peer that has proved that it knows the secret.
    WRONG_CLUSTER = "wrong_cluster"
    DUPLICATE_NAME = "duplicate_name"
    NO_COMMON_VERSION = "no_common_version"
    OURSELVES = "ourselves"
    ANOTHER_NODE = "another_node"
    ALREADY_LINKED = "already_linked"
    REFUSED = "refused"
    """The peer gave a reason that this version does not know."""

    # Ends of a link that was up.
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
    """The node pauses: it has lost the store of definitions, or could not join again."""
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
"""Reasons to refuse a link to a node that knows the secret."""


class LinkRole(Enum):
    """The side of a connection that a node is on."""

    DIALLER = b"dialler"
    ACCEPTOR = b"acceptor"


class LinkSettings(NamedTuple):
    """Times and limits of the links of a node.

    A peer from which nothing comes for `timeout_s` is down, which is noticed up to `interval_s`
    later. A link is congested from `backlog_high_bytes` on, until it is down to
    `backlog_low_bytes`. If its user goes on sending, the link ends above `backlog_bytes_max`.
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
    """The callbacks of a user of links: plain calls on the loop, which may use the links.

    For each node `on_up` and `on_down` alternate; `on_frames` and `on_congested` come between them.
    `on_congested(node, True)` may come from within a `send`, so that a user that sends piece by
    piece notices. If a callback raises, the link ends.
    """

    on_up: Callable[[str, Identity], None]
    on_down: Callable[[str, EndReason], None]
    on_frames: Callable[[str, list[Frame]], None]
    on_congested: Callable[[str, bool], None]


class NodeLinks(Protocol):
    """The links of one node to its peers, at most one to each, known by the peer's name.

    - Frames arrive in the order in which they were sent, without gaps, from `on_up` until the link
      goes down: the frames that are lost are a suffix. The next link starts afresh.
    - `on_up` comes before the first frame, `on_down` after the last. Frames that arrived before the
      connection was lost are handed on first; no frame of a link comes after its `on_down`.
    - A new incarnation of a peer comes up only after its predecessor was reported down.
    - No frames are kept for a peer that is down.
    """

    def connect(self, node: str, host: str, port: int) -> None:
        """Keep a link with the node from now on: dial it whenever there is none."""
        ...

    def forget(self, node: str) -> None:
        """Stop dialling the node, and take its link down. The node may still dial us."""
        ...

    def send(self, node: str, kind: int, *parts: Part) -> bool:
        """Send the parts as one frame; False when the link is down.

        True means that the frame is on its way, not that it will arrive. Raises ValueError for a
        kind that is not the user's and for more than `FRAME_BYTES_MAX` octets.
        """
        ...

    def backlog_bytes(self, node: str) -> int:
        """Octets that the link has not yet given to the kernel; 0 when it is down."""
        ...

    def peers(self) -> dict[str, Identity]:
        """The peers whose links are up, by name."""
        ...

    def is_up(self, node: str) -> bool:
        """Whether the link with this node is up."""
        ...
