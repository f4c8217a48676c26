"""The top-level directories are subpackages of `warren`, and nothing of ours shadows py-amqp."""

from __future__ import annotations

import importlib
import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOUSES = [
    "amqp",
    "core",
    "persist",
    "mirror",
    "mgmt",
    "spark_export",
    "compat_tests",
]


@pytest.mark.parametrize("house", HOUSES)
def test_link_leads_where_the_build_looks(house: str) -> None:
    mapped = PYPROJECT["tool"]["setuptools"]["package-dir"][f"warren.{house}"]
    assert (ROOT / "warren" / house).resolve() == (ROOT / mapped).resolve()


@pytest.mark.parametrize("house", HOUSES)
def test_house_is_a_subpackage_of_warren(house: str) -> None:
    assert importlib.import_module(f"warren.{house}").__name__ == f"warren.{house}"


def test_amqp_is_the_client_library() -> None:
    spec = importlib.util.find_spec("amqp")
    assert spec is not None and spec.origin is not None
    assert "site-packages" in spec.origin


def test_every_package_is_built() -> None:
    """A directory with an `__init__.py` that the build does not name would be missing installed."""
    named = set(PYPROJECT["tool"]["setuptools"]["packages"])
    present = {
        "warren." + ".".join(path.parent.relative_to(ROOT).parts)
        for house in HOUSES
        for path in (ROOT / house).rglob("__init__.py")
    }
    assert present <= named


def test_the_module_spark_looks_for_is_built() -> None:
    assert PYPROJECT["tool"]["setuptools"]["py-modules"] == ["pyspark_warren"]
    assert (ROOT / "pyspark_warren.py").is_file()
    assert importlib.util.find_spec("pyspark_warren") is not None
