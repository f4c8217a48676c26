"""Documents say what is so: the command that runs the tests, and where things are."""

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
