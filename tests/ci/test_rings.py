"""There are no rings: sets of modules each of which reaches the others by imports.

`benchmarks/house.py` finds them. Imports for type checkers count: a reader follows them as well.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@cache
def counting() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "benchmarks" / "house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("for_type_checkers", (False, True))
def test_no_modules_import_each_other(for_type_checkers: bool) -> None:
    house = counting()
    assert house.rings(house.imports(ROOT, for_type_checkers=for_type_checkers)) == []


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
