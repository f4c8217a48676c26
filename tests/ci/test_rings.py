"""Modules that import each other: no such ring comes, and those there are do not grow.

`benchmarks/house.py` finds them. Imports for type checkers count: a reader follows them as well.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]

RINGS: set[frozenset[str]] = {
    frozenset(ring.split())
    for ring in (
        "amqp.basic_methods amqp.channel amqp.connection amqp.exchange_methods amqp.handlers"
        " amqp.mode_methods amqp.publish_stream amqp.queue_methods",
    )
}
"""The rings there are. A module may leave its ring; none may join one."""


@cache
def counting() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "benchmarks" / "house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_modules_import_each_other_while_the_program_runs() -> None:
    house = counting()
    assert house.rings(house.imports(ROOT, for_type_checkers=False)) == []


def test_no_module_joins_a_ring() -> None:
    house = counting()
    found = {
        frozenset(module.removeprefix("warren.") for module in ring)
        for ring in house.rings(house.imports(ROOT, for_type_checkers=True))
    }
    assert found == RINGS, "cut the new ring, or take from the list what left one"


def test_rings_are_found_behind_imports_for_type_checkers(tmp_path: Path) -> None:
    house = tmp_path / "amqp"
    house.mkdir()
    (house / "__init__.py").write_text("")
    (house / "channel.py").write_text("import warren.amqp.consumer\n")
    (house / "consumer.py").write_text(
        "if TYPE_CHECKING:\n    from warren.amqp.channel import Channel\n"
    )
    (house / "frames.py").write_text("from warren.amqp import channel\n")
    house_counting = counting()
    hidden = house_counting.imports(tmp_path, for_type_checkers=True)
    assert house_counting.rings(hidden) == [["warren.amqp.channel", "warren.amqp.consumer"]]
    assert not house_counting.rings(house_counting.imports(tmp_path, for_type_checkers=False))
