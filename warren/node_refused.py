"""A node that cannot start as it is configured."""

from __future__ import annotations


class NodeRefused(Exception):
    """The text says why and what to do."""
