"""The command that installs what is missing."""

from __future__ import annotations

import sys

import pytest
from packaging.requirements import Requirement

from warren import extras


@pytest.mark.parametrize(
    ("extra", "packages"),
    [("conformance", {"pytest", "pika"}), ("spark", {"pyspark", "pandas"})],
)
def test_the_packages_of_an_extra_are_named_one_by_one(extra: str, packages: set[str]) -> None:
    command = extras.install_command(extra)
    assert command.startswith(f"{sys.executable} -m pip install '")
    named = [part for part in command.split("'")[1::2]]
    assert {Requirement(part).name for part in named} == packages


def test_without_a_record_of_the_package_the_repository_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> list[str]:
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", missing)
    assert extras.install_command("spark").endswith("-m pip install '.[spark]'")
