"""Errors of backups, of their sources and of the places they are put into."""


class BackupRefused(Exception):
    """The operation is refused; the text says why, for people."""


class ShelfRefused(BackupRefused):
    """The place for backups or exports cannot be used."""


class BackupDamaged(BackupRefused):
    """The contents of the archive are not those that were put there."""
