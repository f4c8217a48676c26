"""Finds the shelf that a path or a URL names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from warren.backup.errors import ShelfRefused
from warren.backup.remote_shelf import open_url
from warren.backup.shelf import PRIVATE, DirectoryShelf, Shelf
from warren.extras import install_command

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?!//)")
"""A scheme that is not followed by `//`. One of a single letter may be the drive of a path."""


def is_url(place: Path | str) -> bool:
    """Whether a place is a URL; otherwise it is a directory.

    Raises `ShelfRefused` for `s3:bucket` or `hdfs:/x`, which is probably a URL with a mistake. A
    URL in a `Path` has lost a slash, and is refused, too.
    """
    text = str(place)
    mistaken = SCHEME.match(text)
    if mistaken:
        scheme = mistaken[1]
        raise ShelfRefused(
            f"a place that begins with {scheme}: is neither a URL nor a directory: write"
            f" {scheme}://... for a URL, ./{scheme}:... for a directory of that name"
        )
    head, separator, _ = text.partition("://")
    return bool(separator) and "/" not in head


def shelf_at(where: Path | str, mode: int = PRIVATE) -> Shelf:
    """The shelf in a directory, or at a URL; new directories have this mode.

    Raises `ShelfRefused`.
    """
    if not is_url(where):
        return DirectoryShelf(Path(where), mode)
    try:
        return open_url(str(where))
    except ModuleNotFoundError as missing:
        scheme = urlsplit(str(where)).scheme
        raise ShelfRefused(
            f"{scheme}:// needs {missing.name}, which is not installed: {install_command('spark')}"
        ) from None
