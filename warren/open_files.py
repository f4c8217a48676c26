"""How many files this process may have open, and who may have them."""

from __future__ import annotations

import resource

from warren.core.resources.descriptors import Descriptors, share_out

UNLIMITED = 1 << 30
"""Stands for no limit at all."""


def descriptors() -> Descriptors:
    """The shares of the limit as it is now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return share_out(UNLIMITED if soft == resource.RLIM_INFINITY else soft)
