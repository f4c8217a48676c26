"""How large the house is, and how much of it a reader has to know: counted from the code.

    python -P benchmarks/house.py

prints a table in Markdown (docs/house.md has those of some days). Most of it is read from the
sources. The modules met on five journeys are counted while a broker runs: all modules in which a
function was called between the start of the journey and its end, in any thread, without those that
an idle broker calls from time to time.

`rings` is what the tests use: modules that import each other, directly or through others.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TOP = "warren"
LONGEST = 3
"""So many modules, functions and classes are named in each row."""

SETTLES_S = 0.5
"""What a journey leaves to the disk is written by then."""


IDLE_S = 3.0
"""What a broker does anyway is done once in this time."""


class Size(NamedTuple):
    """A thing that was counted, and its number."""

    name: str
    count: int


def sources(root: Path) -> dict[str, Path]:
    """The modules of the package by their names, each once."""
    found = {}
    for initial in sorted(root.glob("*/__init__.py")):
        house = initial.parent
        if house.name == "tests":
            continue
        inner = house.glob("*.py") if house.name == TOP else house.rglob("*.py")
        for path in sorted(inner):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts == [TOP, "__init__"]:
                # It loads the broker for those who ask for it by name.
                continue
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts if parts[0] == TOP else [TOP, *parts])] = path
    return found


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


# Imports


def imports(root: Path, *, for_type_checkers: bool) -> dict[str, set[str]]:
    """Which modules each module imports, with or without those for type checkers alone."""
    modules = sources(root)
    graph = {}
    for name, path in modules.items():
        graph[name] = {
            module
            for origin, member, by_type_checkers in _imported(path)
            if (for_type_checkers or not by_type_checkers)
            and (module := _module(modules, origin, member)) is not None
            and module != name
        }
    return graph


@cache
def _imported(path: Path) -> set[tuple[str, str, bool]]:
    """The modules that are named, what is taken from them, and whether only type checkers do."""
    found = set()
    # The tree is not kept: the collector would go through all of them again and again.
    left: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text("utf-8")), False)]
    while left:
        node, by_type_checkers = left.pop()
        if isinstance(node, ast.If) and _asks_for_type_checkers(node.test):
            by_type_checkers = True
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {(node.module, alias.name, by_type_checkers) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "", by_type_checkers) for alias in node.names}
        # No expression imports anything.
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                left.append((child, by_type_checkers))
    return found


def _asks_for_type_checkers(test: ast.expr) -> bool:
    names = [getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(test)]
    return "TYPE_CHECKING" in names


def _module(modules: dict[str, Path], origin: str, member: str) -> str | None:
    inner = f"{origin}.{member}"
    if inner in modules:
        return inner
    return origin if origin in modules else None


def rings(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that reach each other by imports: the largest ring first (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            at = path.index(module)
            ring = sorted(path[at:])
            del path[at:]
            if len(ring) > 1:
                found.append(ring)

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return sorted(found, key=lambda ring: (-len(ring), ring))


# Sizes


def _functions(modules: dict[str, Path]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods, without those within others."""
    for name, path in modules.items():
        for node in _parsed(path).body:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for function in inner:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{_short(name)}:{owner}{function.name}", function  # type: ignore[misc]


def _classes(modules: dict[str, Path]) -> Iterator[Size]:
    for name, path in modules.items():
        for node in _parsed(path).body:
            if isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                yield Size(f"{_short(name)}:{node.name}", len(methods))


def _short(module: str) -> str:
    return module.removeprefix(f"{TOP}.")


def _largest(sizes: Iterator[Size]) -> list[Size]:
    return sorted(sizes, key=lambda size: (-size.count, size.name))[:LONGEST]


def _parameters(function: ast.FunctionDef) -> int:
    arguments = function.args
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])


def measures(root: Path) -> Iterator[tuple[str, str]]:
    """The rows of the table that need no broker."""
    modules = sources(root)
    lines = {
        _short(name): len(path.read_text("utf-8").splitlines()) for name, path in modules.items()
    }
    yield "modules", f"{len(modules):,}"
    yield "lines", f"{sum(lines.values()):,}"
    yield "longest modules", _named(_largest(Size(*one) for one in lines.items()))
    yield "modules of more than 600 lines", str(sum(count > 600 for count in lines.values()))
    functions = list(_functions(modules))
    lengths = [Size(name, (one.end_lineno or 0) - one.lineno + 1) for name, one in functions]
    yield "longest functions", _named(_largest(iter(lengths)))
    yield "functions of more than 60 lines", str(sum(size.count > 60 for size in lengths))
    parameters = [Size(name, _parameters(one)) for name, one in functions]
    yield "most parameters", _named(_largest(iter(parameters)))
    yield "functions of more than 9 parameters", str(sum(size.count > 9 for size in parameters))
    yield "classes of most methods", _named(_largest(_classes(modules)))
    for title, for_type_checkers in (
        ("rings of imports as the program runs", False),
        ("rings with imports for type checkers", True),
    ):
        found = rings(imports(root, for_type_checkers=for_type_checkers))
        sizes = ", ".join(str(len(ring)) for ring in found)
        yield title, f"{len(found)}, of {sizes} modules" if found else "0"
        if for_type_checkers:
            houses = Counter(module.split(".")[1] for ring in found for module in ring)
            for house, inside in sorted(houses.items()):
                yield f"… modules of `{house}` in a ring", str(inside)


def _named(sizes: list[Size]) -> str:
    return ", ".join(f"`{size.name}` {size.count:,}" for size in sizes)


# Journeys


class Journey:
    """Counts the modules in which functions are called, from `begin` to `end`."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._met: set[str] | None = None

    def begin(self) -> None:
        self._met = set()

    def end(self) -> set[str]:
        met, self._met = self._met or set(), None
        found = {path.removeprefix(self._root) for path in met if path.startswith(self._root)}
        # These stand between this script and the broker, which no client needs.
        return {
            _plain(path)
            for path in found
            if not path.startswith((".venv", "benchmarks")) and "embedded" not in path
        }

    def hook(self, frame: FrameType, event: str, argument: Any) -> None:
        met = self._met
        if met is not None and event == "call":
            met.add(frame.f_code.co_filename)


def _plain(path: str) -> str:
    """Without the link by which the package knows the house."""
    parts = path.split("/")
    return "/".join(parts[1:] if parts[0] == TOP and len(parts) > 2 else parts)


def journeys(root: Path) -> Iterator[tuple[str, set[str]]]:
    """The modules met on each journey. All are made twice, and the second time counts."""
    import pika

    from warren import Broker

    journey = Journey(root)
    threading.setprofile(journey.hook)
    with (
        tempfile.TemporaryDirectory() as directory,
        Broker(data_dir=directory) as broker,
        pika.BlockingConnection(pika.URLParameters(broker.url)) as connection,
    ):
        threading.setprofile(None)  # type: ignore[arg-type]
        channel = connection.channel()
        confirming = connection.channel()
        confirming.confirm_delivery()
        taken: list[int] = []
        channel.queue_declare("consumed")
        channel.basic_consume("consumed", lambda *_: taken.append(1), auto_ack=True)
        confirming.queue_declare("kept", durable=True)
        numbers = iter(range(1000))

        def publish() -> None:
            channel.basic_publish("", "consumed", b"x")
            count = len(taken)
            while len(taken) == count:
                connection.process_data_events(time_limit=0.1)

        def publish_persistent() -> None:
            properties = pika.BasicProperties(delivery_mode=2)
            confirming.basic_publish("", "kept", b"x", properties)

        def get() -> int:
            method, _, _ = confirming.basic_get("kept")
            assert method is not None
            return int(method.delivery_tag)

        def acknowledge(tag: int) -> None:
            confirming.basic_ack(tag)
            connection.process_data_events(time_limit=0)

        def set_policy() -> None:
            mode = "lazy" if next(numbers) % 2 else "default"
            definition = {"queue-mode": mode}
            broker.call(lambda node: node.policies.set("/", "mode", "^kept$", definition))

        def declare() -> None:
            confirming.queue_declare(f"defined-{next(numbers)}", durable=True)

        def made(step: Callable[[], None]) -> set[str]:
            time.sleep(SETTLES_S)
            journey.begin()
            step()
            time.sleep(SETTLES_S)
            return journey.end()

        time.sleep(IDLE_S)
        journey.begin()
        time.sleep(IDLE_S)
        idle = journey.end()
        for name, prepare, step in (
            ("publish to consumer", None, publish),
            ("persistent publish to confirm", None, publish_persistent),
            ("acknowledgement", get, acknowledge),
            ("policy to queue mode", None, set_policy),
            ("definition to disk", None, declare),
        ):
            for _ in range(2):
                if prepare is None:
                    met = made(step)  # type: ignore[arg-type]
                else:
                    tag = prepare()
                    met = made(lambda step=step, tag=tag: step(tag))  # type: ignore
            yield name, met - idle


def main() -> None:
    for title, value in measures(ROOT):
        print(f"| {title} | {value} |")
    for name, met in journeys(ROOT):
        print(f"| modules met: {name} | {len(met)} |")
        if "-v" in sys.argv:
            print(*sorted(met), sep="\n")


if __name__ == "__main__":
    main()
