"""The number of files that this process may have open, and the shares of its parts."""

from __future__ import annotations

import resource

from warren.core.resources.descriptors import Descriptors, share_out

UNLIMITED = 1 << 30
"""Stands for no limit."""


def descriptors() -> Descriptors:
    """The shares of the present limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return share_out(UNLIMITED if soft == resource.RLIM_INFINITY else soft)
