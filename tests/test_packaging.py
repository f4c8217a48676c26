"""The top-level directories are subpackages of `warren`, and nothing of ours shadows py-amqp."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOUSES = [
    "amqp",
    "core",
    "persist",
    "backup",
    "mirror",
    "mgmt",
    "client",
    "shovel",
    "federation",
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


NODE = "import warren.node, warren.management, warren.http_server, warren.embedded\n"
SERVER = "import warren.mgmt.server_command\n"
COMMANDS = """
from warren.mgmt.command_line import COMMANDS, warren
import click
for name in COMMANDS:
    if name != "export":
        assert warren.get_command(click.Context(warren), name) is not None
"""
BROKER_HOUSES = """
import pkgutil
from importlib import import_module
HOUSES = "amqp core persist backup mirror mgmt client shovel federation"
for house in HOUSES.split():
    package = import_module(f"warren.{house}")
    for found in pkgutil.walk_packages(package.__path__, f"warren.{house}."):
        import_module(found.name)
"""
NOTHING_OF_SPARK = """
import sys
heavy = {"numpy", "pandas", "pyarrow", "pyspark", "py4j", "warren.spark_export"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(NODE, id="node"),
        pytest.param(SERVER, id="server"),
        pytest.param(COMMANDS, id="commands"),
        pytest.param(BROKER_HOUSES, id="every module"),
    ],
)
def test_nothing_but_exports_imports_what_only_they_need(program: str) -> None:
    command = [sys.executable, "-P", "-c", program + NOTHING_OF_SPARK]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_list_of_commands_is_told_without_what_only_exports_need() -> None:
    program = """
import sys
from click.testing import CliRunner
from warren.mgmt.command_line import warren
for arguments in (["--help"], ["export", "--help"], ["export", "snapshot", "--help"]):
    assert CliRunner().invoke(warren, arguments).exit_code == 0
heavy = {"numpy", "pandas", "pyarrow", "pyspark", "py4j"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    command = [sys.executable, "-P", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
