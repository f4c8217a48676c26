"""The house does not get worse: sizes of files and functions, and names that stand for one thing.

What is above a bound today is listed with its size. It may shrink, and its number with it; nothing
may grow, and nothing may join the list.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSES = (
    "amqp",
    "backup",
    "client",
    "core",
    "federation",
    "mgmt",
    "mirror",
    "persist",
    "shovel",
    "spark_export",
    "warren",
)

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 9

LONG_FILES: dict[str, int] = {
    "amqp/channel.py": 776,
    "amqp/connection.py": 832,
    "core/backing/variable_queue.py": 622,
    "core/queues/classic_queue.py": 632,
    "core/vhosts/vhost.py": 644,
    "mirror/remote/remote_queue.py": 683,
    "mirror/replication/leading/led_queue.py": 653,
    "spark_export/decode/decode.py": 603,
    "warren/cluster.py": 635,
}

LONG_FUNCTIONS: dict[str, int] = {
    "amqp/connection.py:Connection._read_frames": 67,
    "amqp/properties.py:ordinary": 64,
    "amqp/properties.py:scan": 61,
    "amqp/publish_stream.py:serve_publishes": 121,
    "core/node.py:Node.__init__": 63,
    "mgmt/api/messages.py:get": 61,
    "mgmt/api/overview.py:node_row": 70,
    "mgmt/perf/stream.py:Stream._read_frames": 71,
    "spark_export/cli.py:run": 74,
    "warren/conf_values.py:assemble": 90,
}

MANY_PARAMETERS: dict[str, int] = {
    "amqp/server.py:AmqpListener.__init__": 11,
    "core/node.py:Node.__init__": 13,
    "mirror/definitions/cluster_metadata.py:ClusterMetadata.open": 11,
    "mirror/links/links.py:Links.__init__": 11,
    "mirror/members/membership.py:Membership.open": 10,
    "mirror/replication/copies/copy_here.py:CopyHere.__init__": 10,
    "persist/definitions/second_copy.py:SecondCopy.__init__": 10,
    "spark_export/snapshot/creation.py:Creation.__init__": 11,
    "warren/message_storage.py:MessageStorage.start": 12,
    "warren/node.py:RunningNode.__init__": 12,
}


@cache
def modules() -> dict[str, ast.Module]:
    """The modules of the broker by their paths, without the links in `warren/`."""
    # The collector would go through all the trees again and again.
    gc.disable()
    try:
        return {
            str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
            for house in HOUSES
            for path in sorted((ROOT / house).rglob("*.py"))
            if not any(parent.is_symlink() for parent in path.parents)
        }
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def trees_are_let_go() -> Iterator[None]:
    """They take more than 100 MB."""
    yield
    modules.cache_clear()


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{path}:{node.name}.{inner.name}", inner
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{node.name}", node


def long_files() -> dict[str, int]:
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in modules()}
    return {path: count for path, count in lines.items() if count > FILE_LINES_MAX}


def long_functions() -> dict[str, int]:
    lines = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    return {name: count for name, count in lines.items() if count > FUNCTION_LINES_MAX}


def many_parameters() -> dict[str, int]:
    """Those without a decorator: of a command of the command line, each is one of its options."""
    counts = {
        name: len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
        for name, node in functions()
        if not node.decorator_list or "classmethod" in ast.unparse(node.decorator_list[0])
    }
    return {name: count for name, count in counts.items() if count > PARAMETERS_MAX}


@pytest.mark.parametrize(
    ("found", "known"),
    [
        pytest.param(long_files, LONG_FILES, id="lines of a file"),
        pytest.param(long_functions, LONG_FUNCTIONS, id="lines of a function"),
        pytest.param(many_parameters, MANY_PARAMETERS, id="parameters of a function"),
    ],
)
def test_nothing_gets_larger(found: Callable[[], dict[str, int]], known: dict[str, int]) -> None:
    now = found()
    grown = {name: size for name, size in now.items() if size > known.get(name, 0)}
    assert not grown, "make it smaller, rather than the bound larger"
    shrunk = {name: now.get(name, 0) for name, size in known.items() if now.get(name, 0) < size}
    assert not shrunk, "well done; put the new numbers into this file"


def test_no_two_classes_have_one_name() -> None:
    paths: dict[str, list[str]] = defaultdict(list)
    for path, module in modules().items():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                paths[node.name].append(path)
    assert not {name: found for name, found in paths.items() if len(found) > 1}


def test_comments_name_who_does_what() -> None:
    """A node, a client, a reader, an operator: readers need not guess who "nobody" is."""
    vague = re.compile(r"\b([Nn]obody|[Ww]hoever|[Ss]omebody|[Aa]nybody|[Ee]verybody|[Nn]o one)\b")
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in modules()
        for number, line in enumerate((ROOT / path).read_text("utf-8").splitlines(), 1)
        if vague.search(line)
    ]
    assert not found, "\n".join(found)
