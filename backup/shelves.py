"""Finds the shelf that a path or a URL names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from warren.backup.errors import ShelfRefused
from warren.backup.remote_shelf import open_url
from warren.backup.shelf import PRIVATE, DirectoryShelf, Shelf
from warren.extras import install_command


def shelf_at(where: Path | str, mode: int = PRIVATE) -> Shelf:
    """The shelf in a directory, or at a URL; new directories have this mode.

    Raises `ShelfRefused`.
    """
    if "://" not in str(where):
        return DirectoryShelf(Path(where), mode)
    try:
        return open_url(str(where))
    except ModuleNotFoundError as missing:
        scheme = urlsplit(str(where)).scheme
        raise ShelfRefused(
            f"{scheme}:// needs {missing.name}, which is not installed: {install_command('spark')}"
        ) from None
