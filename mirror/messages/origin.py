"""The name under which leaders of queues know the publishes of a node: the node and its start."""

from __future__ import annotations

SOME_ORIGINS = ""
"""Stands among the origins of a queue for unknown ones: other nodes may have published to it while
its leader was away or it was not mirrored."""


def origin_name(node: str, incarnation: int) -> str:
    """The name of the publishes of one run of a node."""
    return f"{node}/{incarnation}"


def node_of(origin: str) -> str:
    """The name of the node in an origin."""
    return origin.rpartition("/")[0]
