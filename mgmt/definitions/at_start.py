"""Loads definitions from files when a node starts (`load_definitions`).

A directory stands for all files in it that are not hidden, in the order of their names. With
`skip_if_unchanged` (`definitions.skip_if_unchanged`) nothing is loaded when the files are those
that were loaded last. The SHA-256 of their octets, one after the other, is kept in hexadecimal in
the global parameter `imported_definition_hash_value` after every loading. What was changed on the
node since, or imported over HTTP, does not count.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from pathlib import Path

from warren.core.definitions.validation import NotThere
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.mgmt.definitions.errors import DefinitionsFileRefused, DefinitionsRefused
from warren.mgmt.definitions.load import import_definitions, parsed
from warren.mgmt.definitions.names import IMPORTED_HASH
from warren.mgmt.waiting import durable

log = logging.getLogger("warren.definitions")


async def load_definitions(node: Node, path: Path, *, skip_if_unchanged: bool = False) -> bool:
    """Load the file, or the files in the directory; False if they were skipped.

    On return all of it is on disk. Raises `DefinitionsFileRefused`; the files before that one, and
    what comes before the fault in it, are loaded then.
    """
    files = [(file, _read(file)) for file in _files(path)]
    digest = sha256(b"".join(octets for _, octets in files)).hexdigest()
    if skip_if_unchanged and _loaded_last(node) == digest:
        log_event(log, logging.INFO, "definitions_unchanged", path=path)
        return False
    for file, octets in files:
        try:
            await import_definitions(node, await parsed(octets, node.clock))
        except DefinitionsRefused as error:
            raise DefinitionsFileRefused(file, error.text) from error
        log_event(log, logging.INFO, "definitions_loaded", path=file)
    await _keep(node, digest)
    return True


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DefinitionsFileRefused(file, error.strerror or repr(error)) from None


async def _keep(node: Node, digest: str) -> None:
    """Kept also where nothing is to be skipped: the next start may be told to skip."""
    node.global_parameters.set(IMPORTED_HASH, digest)
    await durable(node.metadata)


def _loaded_last(node: Node) -> object:
    try:
        return node.global_parameters.get(IMPORTED_HASH)
    except NotThere:
        return None
