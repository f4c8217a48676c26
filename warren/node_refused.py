"""The error of a node that cannot start as it is configured."""

from __future__ import annotations


class NodeRefused(Exception):
    """The node cannot start as it is configured; the text says why and what to do."""
