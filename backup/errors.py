"""What can be wrong with a backup, or with what it is to be made of or put into."""


class BackupRefused(Exception):
    """It cannot be done; the text says why, for people."""


class ShelfRefused(BackupRefused):
    """The place where backups or exports are to be kept cannot be used so."""


class BackupDamaged(BackupRefused):
    """What the backup directory has is not what was put there."""
