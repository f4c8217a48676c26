"""Errors of gm.

GmError
├── BroadcastRefused       nothing was broadcast
│   ├── NotJoined          the member is joining, or has stopped
│   ├── Stopping           the member was told to stop once drained
│   └── Congested          the member holds as much as it may
└── Inconsistent           a member was told something that contradicts what it knows
"""

from __future__ import annotations


class GmError(Exception):
    pass


class BroadcastRefused(GmError):
    """The message was not broadcast, and no member will get it."""


class NotJoined(BroadcastRefused):
    pass


class Stopping(BroadcastRefused):
    pass


class Congested(BroadcastRefused):
    pass


class Inconsistent(GmError):
    """A member was told something that contradicts what it knows: a defect of gm or of a link."""
