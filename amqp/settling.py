"""How many messages a channel acknowledges, rejects or requeues before others have their turn."""

from __future__ import annotations

SETTLED_AT_ONCE = 2000
"""Some milliseconds."""

SETTLED_US = 2
"""What one of them costs, as `core/turns.py` counts it."""
