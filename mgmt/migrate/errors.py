"""Why nothing can be moved.

MigrateError
└── WrongAddress    a URL that is not understood
"""

from __future__ import annotations


class MigrateError(Exception):
    """The whole run ends."""


class WrongAddress(MigrateError):
    """Wrong usage: the command line names no broker."""
