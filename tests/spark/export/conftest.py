"""Stores to export, and where to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting import CONTENT_HEADER
from stored_node import StoredNode, fill


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a node that has stopped; for those who only read."""
    directory = tmp_path_factory.mktemp("store")
    fill(directory, CONTENT_HEADER).stop()
    return directory


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    node = StoredNode(tmp_path / "node", CONTENT_HEADER)
    yield node
    node.die()


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "export"
