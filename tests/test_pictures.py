"""The pictures of the README are those that their scripts draw."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
SHOWN_BYTES_MAX = 200_000


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_houses_is_drawn_from_the_imports() -> None:
    drawn = script("architecture").draw(ROOT)
    assert drawn == (PICTURES / "architecture.svg").read_text("utf-8"), (
        "run docs/pictures/architecture.py"
    )


def test_picture_and_table_of_scaling_are_computed_from_the_same_figures() -> None:
    scaling = script("scaling")
    assert scaling.draw() == (PICTURES / "scaling.svg").read_text("utf-8"), (
        "run docs/pictures/scaling.py"
    )
    page = (ROOT / "docs" / "processes.md").read_text("utf-8")
    assert scaling.table() in page
    assert f"takes {scaling.LOCAL_US} µs" in page
    assert f"{scaling.CROSSING_US} µs" in page and f"{scaling.RABBITMQ_US} µs" in page


def test_one_core_gives_the_same_wherever_clients_are() -> None:
    scaling = script("scaling")
    one = scaling.millions("one", 1)
    assert one == scaling.millions("near", 1) == scaling.millions("anywhere", 1)
    assert one < scaling.millions("anywhere", 4) < scaling.millions("near", 4)


def houses(root: Path, **code: str) -> None:
    for name, text in code.items():
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("")
        (root / name / "part.py").write_text(text)


def test_imports_are_found_but_for_those_of_type_checkers(tmp_path: Path) -> None:
    houses(
        tmp_path,
        core="import os",
        amqp="from warren.core.queues.queue import Queue",
        mgmt="import warren.amqp.server\nfrom warren import core, config\n"
        "if TYPE_CHECKING:\n    from warren.persist import Storage",
        persist="def late():\n    from warren.core import ports",
    )
    assert script("architecture").imports(tmp_path) == {
        "core": set(),
        "amqp": {"core"},
        "mgmt": {"amqp", "core"},
        "persist": {"core"},
    }


def test_what_follows_from_other_imports_is_not_drawn() -> None:
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert script("architecture").arrows(graph) == [("a", "b"), ("b", "c"), ("c", "d")]


def test_a_house_without_a_place_is_an_error(tmp_path: Path) -> None:
    houses(tmp_path, core="", cellar="")
    with pytest.raises(ValueError, match="cellar"):
        script("architecture").draw(tmp_path)


def test_the_picture_of_the_pages_is_small_and_shown_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for name in ("pages.png", "architecture.svg"):
        assert f"docs/pictures/{name}" in readme
    picture = (PICTURES / "pages.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < SHOWN_BYTES_MAX
