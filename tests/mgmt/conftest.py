"""The way to the modules the tests of this folder share, and a node to operate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "persist", HERE.parent / "simulation", HERE.parent / "system"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from ctl_node import CtlNode  # noqa: E402


@pytest.fixture(scope="module")
def ctl_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CtlNode]:
    """A node that the tests of a module share: each uses names of its own."""
    node = CtlNode(tmp_path_factory.mktemp("node"))
    yield node
    node.end()
