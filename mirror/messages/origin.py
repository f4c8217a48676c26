"""How the publishes of a node are named at the leaders of queues: by the node and its start."""

from __future__ import annotations


def origin_name(node: str, incarnation: int) -> str:
    """What the publishes of one run of a node are known by."""
    return f"{node}/{incarnation}"


def node_of(origin: str) -> str:
    """The name of the node."""
    return origin.rpartition("/")[0]
