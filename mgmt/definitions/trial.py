"""Tries files of definitions with a node that keeps nothing, listens nowhere and connects nowhere.

A file may rely on virtual hosts and users that the configured node has already. So, unless that
node begins anew, all virtual hosts and users that items name are made before the items are tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warren.config import Config
from warren.mgmt.definitions.at_start import definition_files
from warren.mgmt.definitions.errors import DefinitionsFileRefused, DefinitionsRefused
from warren.mgmt.definitions.load import import_definitions
from warren.node import RunningNode


async def problems_of_items(config: Config, path: Path) -> list[str]:
    """Return why a node would refuse items of the file, or of the files in the directory.

    Of each file only the first reason is found. `file_problems` finds files that are not
    definitions at all.
    """
    begins_anew = config.cluster is None and not (config.data_dir and config.data_dir.exists())
    node = await RunningNode.start(_alone(config))
    problems = []
    try:
        for file, definitions in definition_files(path):
            try:
                if not begins_anew:
                    await import_definitions(node.node, _taken_for_granted(definitions))
                await import_definitions(node.node, definitions)
            except DefinitionsRefused as error:
                problems.append(DefinitionsFileRefused(file, error.text).text)
    finally:
        await node.stop()
    return problems


def _alone(config: Config) -> Config:
    return dataclasses.replace(
        config,
        data_dir=None,
        processes=1,
        process=None,
        cluster=None,
        amqp_listeners=(),
        tls_listeners=(),
        http_listeners=(),
        http_tls_listeners=(),
        metrics_listeners=(),
        metrics_tls_listeners=(),
        runs_links=False,
        otel_endpoint=None,
        load_definitions=None,
    )


def _taken_for_granted(definitions: dict[str, Any]) -> dict[str, Any]:
    return {
        "vhosts": [{"name": name} for name in _named(definitions, "vhost")],
        "users": [
            {"name": name, "password_hash": "", "tags": ""} for name in _named(definitions, "user")
        ],
    }


def _named(definitions: dict[str, Any], key: str) -> Iterator[str]:
    """The names under this key in all items, each once."""
    sections = [section for section in definitions.values() if isinstance(section, list)]
    names = [item.get(key) for section in sections for item in section if isinstance(item, dict)]
    yield from dict.fromkeys(name for name in names if isinstance(name, str))
