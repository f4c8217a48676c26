"""Errors of gm.

GmError
├── BroadcastRefused       nothing was broadcast
│   ├── NotJoined          the member is joining, or has stopped
│   ├── Stopping           it was told to stop once drained
│   └── Congested          it holds as much as it may
└── Inconsistent           a member was told what cannot be
"""

from __future__ import annotations


class GmError(Exception):
    pass


class BroadcastRefused(GmError):
    """Nothing was broadcast and nobody will see it."""


class NotJoined(BroadcastRefused):
    pass


class Stopping(BroadcastRefused):
    pass


class Congested(BroadcastRefused):
    pass


class Inconsistent(GmError):
    """What a member was told contradicts what it knows: a defect of gm or of a link."""
