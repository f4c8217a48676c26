"""How the tests are run: their marks, their order, and what is kept between processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import warren.core.queues.queue

TESTS = Path(__file__).parents[1]


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> ModuleType:
    """The conftest.py of all tests."""
    plugin: Any = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    return plugin


def house(module: Path) -> str:
    return module.relative_to(TESTS).parts[0]


def in_order(shared: ModuleType) -> list[Path]:
    """The modules of all tests, two tests of each, as a process of several would run them."""
    modules = [module for _ in range(2) for module in sorted(TESTS.rglob("test_*.py"))]
    items = [SimpleNamespace(path=module, add_marker=lambda mark: None) for module in modules]
    shared.pytest_collection_modifyitems(SimpleNamespace(workerinput={}), items)
    return [item.path for item in items]


def test_spark_comes_first_and_no_module_is_cut(shared: ModuleType) -> None:
    run = in_order(shared)
    assert all(first == second for first, second in zip(run[::2], run[1::2], strict=True))
    others = next(place for place, module in enumerate(run) if house(module) != "spark")
    names = {module.name for module in run[:others]}
    assert names >= {"test_source.py", "test_sink.py", "test_stream_query.py"}


def test_tests_that_wait_are_mixed_with_tests_that_compute_and_are_never_last(
    shared: ModuleType,
) -> None:
    houses = [house(module) for module in in_order(shared)]
    for part in (houses[: len(houses) // 2], houses[len(houses) // 2 :]):
        assert {"system", "mgmt", "core", "amqp"} <= {*part}
    assert not {"system", "mgmt", "spark"} & {*houses[-len(houses) // 10 :]}


def test_each_process_begins_to_collect_elsewhere_and_collects_all(
    shared: ModuleType, request: pytest.FixtureRequest
) -> None:
    def collected(number: int) -> list[str]:
        directory = shared.Rotated.from_parent(request.session, path=TESTS / "core")
        directory.begin = number / 4
        return [entry.path.name for entry in directory.collect()]

    first, second, third, fourth = (collected(number) for number in range(4))
    assert len({first[0], second[0], third[0], fourth[0]}) == 4
    assert first == sorted(second) == sorted(third) == sorted(fourth)


@pytest.mark.parametrize(
    ("module", "mark"),
    [
        ("core/exchanges/test_topic.py", None),
        ("system/web_ui/test_web_ui.py", "browser"),
        ("system/test_coming_back.py", "cluster"),
        ("mirror/test_etcd.py", "cluster"),
        ("spark/source/test_source.py", "spark"),
    ],
)
def test_what_a_test_needs_is_a_mark(shared: ModuleType, module: str, mark: str | None) -> None:
    marks: list[str] = []
    item = SimpleNamespace(path=TESTS / module, add_marker=marks.append)
    shared.pytest_collection_modifyitems(SimpleNamespace(), [item])
    assert marks == ([] if mark is None else [mark])


def test_compiled_modules_are_kept_whatever_the_environment_says() -> None:
    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_assertions_of_the_broker_are_as_they_are_without_pytest() -> None:
    assert "@pytest_ar" in globals()
    assert "@pytest_ar" not in vars(warren.core.queues.queue)
