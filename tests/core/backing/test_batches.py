"""A class with a `publish` of its own has a `publish_many` of its own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import warren.core
import warren.mirror
from warren.core.backing.backing_queue import OneByOne

HOUSES = (warren.core, warren.mirror)


def classes() -> Iterator[type]:
    for house in HOUSES:
        for module in pkgutil.walk_packages(house.__path__, f"{house.__name__}."):
            for found in vars(importlib.import_module(module.name)).values():
                if isinstance(found, type) and found.__module__ == module.name:
                    yield found


TAKERS = [kind for kind in classes() if "publish" in vars(kind) and hasattr(kind, "publish_many")]


def test_the_takers_are_found() -> None:
    names = {kind.__name__ for kind in TAKERS}
    assert names >= {"Queue", "RemoteQueue", "MemoryQueue", "VariableQueue", "PriorityQueue"}
    assert "LeaderLevel" in names


@pytest.mark.parametrize("kind", TAKERS, ids=lambda kind: kind.__name__)
def test_an_inherited_batch_does_not_pass_over_the_single_call(kind: type) -> None:
    # `OneByOne` makes its batches of single calls.
    inherits = issubclass(kind, OneByOne)
    assert inherits or "publish_many" in vars(kind), kind
    if hasattr(kind, "publish_delivered"):
        assert inherits or "publish_many_delivered" in vars(kind), kind
