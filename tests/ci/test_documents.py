"""Documents and comments say what is so: the command that runs the tests, where things are, and
what they are called."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]
HOUSES = sorted(path.name for path in (ROOT / "warren").iterdir() if path.is_symlink())
A_PATH = re.compile(
    rf"`((?:{'|'.join([*HOUSES, 'tests', 'benchmarks', 'deploy'])})/[\w./-]+\.\w+)`"
)

A_NAME = re.compile(r"`([A-Za-z_]\w{2,}(?:\.\w+)*)[`(]")
IN_BACKTICKS = re.compile(r"`[^`\n]*`")
NAMES_OF_OTHERS = {
    "GiB",
    "KIND_age",
    "KIND_incr",
    "SparkEnv",
    "Trigger.AvailableNow",
    "etcdctl",
    "kiB",
}
"""Names in comments that are not in the code: of units, of other programs, and patterns."""


def test_the_checks_run_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"^Run the tests:\n\n```sh\n(.*)\n```$", readme, re.MULTILINE)
    run = re.search(r'^test_command="(.*)"$', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert shown is not None and run is not None
    assert run[1] == shown[1]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.name))
def test_the_files_that_a_document_names_are_there(document: Path) -> None:
    named = A_PATH.findall(document.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_names_in_docstrings_and_comments_are_in_the_code() -> None:
    """A name that was changed is changed in what is said of it, too."""
    texts = {
        path.relative_to(ROOT): path.read_text()
        for house in [*HOUSES, "warren", "compat_tests", "benchmarks", "tests"]
        for path in (ROOT / house).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    }
    words = {
        word for text in texts.values() for word in re.findall(r"\w+", IN_BACKTICKS.sub("", text))
    }
    words |= {path.stem for path in texts}
    unknown = [
        f"{path}: {name}"
        for path, text in texts.items()
        for name in A_NAME.findall(text)
        if name not in NAMES_OF_OTHERS and not words.issuperset(name.split("."))
    ]
    assert unknown == []
