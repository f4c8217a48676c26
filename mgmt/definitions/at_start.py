"""Loads definitions from files when a node starts (`load_definitions`).

A directory stands for all files in it that are not hidden, in the order of their names. With
`skip_if_unchanged` (`definitions.skip_if_unchanged`) nothing is loaded if the files are the same as
at the last load. For that, the SHA-256 of their concatenated octets is kept in hexadecimal in the
global parameter `imported_definition_hash_value` after each load. Later changes on the node, or
imports over HTTP, do not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from warren.config import Config
from warren.core.definitions.validation import NotThere
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.mgmt.definitions.errors import (
    DefinitionsFileRefused,
    DefinitionsRefused,
    NotDefinitions,
)
from warren.mgmt.definitions.items import sections
from warren.mgmt.definitions.load import OF_NODE, import_definitions, parsed
from warren.mgmt.definitions.names import IMPORTED_HASH
from warren.mgmt.definitions.parsing import parse
from warren.mgmt.waiting import durable

log = logging.getLogger("warren.definitions")


async def define(config: Config, node: Node, running: Callable[[], Collection[str]] | None) -> None:
    """Load the files of the configuration, if this node is the one to do it.

    Of several processes of a broker the first one is, and the others wait for it; `running` says
    which of them this one can reach. Raises `DefinitionsFileRefused`.
    """
    assert config.load_definitions is not None
    if config.process is not None and running is not None:
        loading = import_module("warren.mgmt.processes.loading")
        if not await loading.is_to_load(config.process, running):
            return
    await load_definitions(
        node, config.load_definitions, skip_if_unchanged=config.definitions_skip_if_unchanged
    )


async def load_definitions(node: Node, path: Path, *, skip_if_unchanged: bool = False) -> bool:
    """Load the file, or the files in the directory; False if they were skipped.

    On return everything is on disk. Raises `DefinitionsFileRefused`; the files before the refused
    one, and the items before the fault in it, stay loaded.
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


def file_problems(path: Path) -> list[str]:
    """Why the files cannot be loaded, as far as it can be said without the node: a file that cannot
    be read, or is not a JSON object whose sections are lists of objects."""
    problems = []
    for file in _files(path):
        try:
            sections(parse(_read(file)), OF_NODE)
        except DefinitionsFileRefused as error:
            problems.append(error.text)
        except NotDefinitions as error:
            problems.append(DefinitionsFileRefused(file, error.text).text)
    return problems


def definition_files(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The files, each with the definitions parsed from it.

    Raises `DefinitionsFileRefused` and `NotDefinitions`.
    """
    for file in _files(path):
        yield file, parse(_read(file))


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
    """Keep the hash of the files. It is kept without `skip_if_unchanged`, too, since that may be
    set at the next start."""
    node.global_parameters.set(IMPORTED_HASH, digest)
    await durable(node.metadata)


def _loaded_last(node: Node) -> object:
    try:
        return node.global_parameters.get(IMPORTED_HASH)
    except NotThere:
        return None
