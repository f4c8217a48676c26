"""The way to the modules the tests of this folder share, and a node to operate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ctl_node import CtlNode


@pytest.fixture(scope="module")
def ctl_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CtlNode]:
    """A node that the tests of a module share: each uses names of its own."""
    node = CtlNode(tmp_path_factory.mktemp("node"))
    yield node
    node.end()
