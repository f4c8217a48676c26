"""Draws the houses of Warren and their imports, as they are in the code.

    python docs/pictures/architecture.py

writes `architecture.svg` beside this file. A test sees to it that the picture there is the one that
this draws. Imports for type checkers alone do not count, nor do those of modules that all houses
may use (`warren/config.py` and its neighbours).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).with_suffix(".svg")

TOP = "warren"
"""Puts the node together; its modules are beside the links to the houses."""

HOUSES = {
    "warren": ("configuration, and the node", "that all parts make"),
    "mgmt": ("HTTP API, pages, metrics,", "command line, migration"),
    "backup": ("backups beside a node,", "and restoring them"),
    "spark_export": ("queues as DataFrames,", "streams and Parquet"),
    "federation": ("exchanges and queues", "that others feed"),
    "shovel": ("moving messages", "between brokers"),
    "amqp": ("frames, connections,", "channels, the server"),
    "mirror": ("clusters: links, etcd,", "copies of queues"),
    "persist": ("what is on disk: journal,", "indexes, definitions"),
    "compat_tests": ("the conformance suite", "for any broker"),
    "client": ("an AMQP client that", "changes no message"),
    "core": ("queues, exchanges, policies,", "and what they ask of others"),
}
"""What lives there, in two lines. A house that is missing here has no picture: that is an error."""

COLUMNS = {
    "compat_tests": 0,
    "client": 1,
    "federation": 1,
    "shovel": 1,
    "amqp": 2,
    "core": 3,
    "mgmt": 3,
    "warren": 3,
    "mirror": 3,
    "persist": 4,
    "backup": 4,
    "spark_export": 5,
}

BOX = (176, 64)
GAP = (18, 54)
MARGIN = 16
STYLE = """
  .house { fill: #eef5f4; stroke: #1f5f5b; stroke-width: 1.4; }
  .name { font: 600 15px sans-serif; fill: #14302e; text-anchor: middle; }
  .about { font: 11px sans-serif; fill: #3d5654; text-anchor: middle; }
  .way { fill: none; stroke: #5d7a78; stroke-width: 1.4; }
"""


def houses(root: Path) -> list[str]:
    """The directories of the repository that hold a part of the package."""
    found = [path.parent.name for path in root.glob("*/__init__.py") if path.parent.name != "tests"]
    return sorted(found)


def imports(root: Path) -> dict[str, set[str]]:
    """Which houses each house imports."""
    names = houses(root)
    return {
        name: {
            house
            for file in sorted((root / name).glob("*.py" if name == TOP else "**/*.py"))
            for house in _imported(ast.parse(file.read_text("utf-8")))
            if house in names and house not in (name, TOP)
        }
        for name in names
    }


def _imported(tree: ast.AST) -> Iterator[str]:
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    if isinstance(tree, ast.ImportFrom) and tree.module == TOP:
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom) and tree.module and tree.module.startswith(f"{TOP}."):
        yield tree.module.split(".")[1]
    elif isinstance(tree, ast.Import):
        names = [alias.name.split(".") for alias in tree.names]
        yield from (parts[1] for parts in names if parts[0] == TOP and len(parts) > 1)
    for child in ast.iter_child_nodes(tree):
        # No expression imports anything.
        if not isinstance(child, ast.expr):
            yield from _imported(child)


def reach(graph: dict[str, set[str]], start: str) -> set[str]:
    """Everything it imports, by whatever way."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for house in graph[waiting.pop()] - found:
            found.add(house)
            waiting.append(house)
    return found


def arrows(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports without those that follow from others."""
    return [
        (start, end)
        for start in sorted(graph)
        for end in sorted(graph[start])
        if not any(end in reach(graph, other) for other in graph[start] - {end})
    ]


def level(graph: dict[str, set[str]], house: str) -> int:
    """How many imports there are below it, one after the other."""
    return max([level(graph, other) + 1 for other in graph[house]], default=0)


def draw(root: Path) -> str:
    """The picture. Raises ValueError for a house that has no place in it."""
    graph = imports(root)
    if set(graph) != set(HOUSES):
        raise ValueError(f"houses and picture differ in {sorted(set(graph) ^ set(HOUSES))}")
    levels = {house: level(graph, house) for house in graph}
    top = max(levels.values())
    places = {
        house: (
            MARGIN + COLUMNS[house] * (BOX[0] + GAP[0]),
            MARGIN + (top - levels[house]) * (BOX[1] + GAP[1]),
        )
        for house in graph
    }
    width = 2 * MARGIN + 6 * BOX[0] + 5 * GAP[0]
    height = 2 * MARGIN + (top + 1) * BOX[1] + top * GAP[1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>The houses of Warren; an arrow is an import, and those that follow from"
        " others are left out</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#5d7a78"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    parts += [_arrow(places[start], places[end]) for start, end in arrows(graph)]
    parts += [_box(house, *places[house]) for house in sorted(places)]
    return "\n".join([*parts, "</svg>", ""])


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """From the lower edge of one box to the upper edge of another, bent at the end."""
    x1, y1 = start[0] + BOX[0] // 2, start[1] + BOX[1]
    x2, y2 = end[0] + BOX[0] // 2, end[1] - 2
    bend = min(y1 + GAP[1] - 12, y2)
    way = f"M{x1} {y1}C{x1} {bend} {x2} {y1} {x2} {bend}V{y2}"
    return f'<path class="way" d="{way}" marker-end="url(#tip)"/>'


def _box(house: str, x: int, y: int) -> str:
    middle = x + BOX[0] // 2
    first, second = HOUSES[house]
    return (
        f'<rect class="house" x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="9"/>'
        f'<text class="name" x="{middle}" y="{y + 22}">{house}</text>'
        f'<text class="about" x="{middle}" y="{y + 40}">{first}</text>'
        f'<text class="about" x="{middle}" y="{y + 54}">{second}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(ROOT), encoding="utf-8")
