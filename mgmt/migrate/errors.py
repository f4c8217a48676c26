"""Why nothing can be moved.

MigrateError
└── WrongAddress    a URL that cannot be parsed
"""

from __future__ import annotations


class MigrateError(Exception):
    """The whole run ends."""


class WrongAddress(MigrateError):
    """Wrong usage: an address on the command line is not that of a broker."""
