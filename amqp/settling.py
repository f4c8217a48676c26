"""How many messages a channel acknowledges, rejects or requeues before others have their turn."""

from __future__ import annotations

SETTLED_AT_ONCE = 2000
"""Some milliseconds."""

SETTLED_US = 2
"""What one of them costs, as `core/scheduling/turns.py` counts it."""

FEW = 64
"""So few are not worth counting."""

SETTLED_PER_US = 2
"""Messages that are acknowledged together in a microsecond."""

LOOKS_PER_US = 8
"""Messages that can be looked at in a microsecond."""
