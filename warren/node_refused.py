"""The errors of a node that cannot start as it is configured."""

from __future__ import annotations


class NodeRefused(Exception):
    """The node cannot start as it is configured; the text says why and what to do."""


class ClusterRefused(NodeRefused):
    """The node cannot be part of the cluster; the text says why and what to do."""


class StoreLost(NodeRefused):
    """The etcd of the cluster could not be used; it may be back at the next attempt."""
