"""The command to type when an optional package is missing."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires

OF_EXTRA = re.compile(r"(?P<package>[^;]+);.*extra == [\"'](?P<extra>[^\"']+)[\"']")


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra for this Python."""
    try:
        declared = requires("warren") or []
    except PackageNotFoundError:
        declared = []
    packages = [
        found["package"].strip()
        for found in map(OF_EXTRA.match, declared)
        if found is not None and found["extra"] == extra
    ]
    # Without the metadata of an installed package, Warren runs from its repository.
    wanted = " ".join(f"'{package}'" for package in packages) or f"'.[{extra}]'"
    return f"{sys.executable} -m pip install {wanted}"
