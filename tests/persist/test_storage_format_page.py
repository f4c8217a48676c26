"""The example in `docs/storage-format.md` lists what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from stored_node import INVOICES, ORDERS, StoredNode, fill

from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.dump import dump

PAGE = Path(__file__).parents[2] / "docs" / "storage-format.md"


def listed(directory: Path, queue: int) -> list[tuple[int, int]]:
    """Positions and sizes of bodies as the example prints them."""
    example = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert example is not None
    command = [sys.executable, "-P", "-c", example[1], str(directory), f"{queue:x}"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [(int(line.split()[0]), int(line.split()[2])) for line in output.splitlines()]


@pytest.mark.parametrize("queue", [ORDERS, INVOICES])
def test_the_example_lists_a_queue(tmp_path: Path, queue: int) -> None:
    fill(tmp_path).die()
    node = StoredNode(tmp_path)
    node.publish(b"after a restart", queue)
    oldest = next(dump(RealFileSystem(), tmp_path, queue)).position
    node.queues[queue].remove_range(oldest, oldest + 11)
    node.flush()
    node.die()
    wanted = [(at.position, at.body_bytes) for at in dump(RealFileSystem(), tmp_path, queue)]
    assert wanted
    assert listed(tmp_path, queue) == wanted
