"""What holds for all tests: their marks, and in which processes and in which order they run.

Nothing depends on time: how long an example of hypothesis takes says nothing on a busy machine.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path
from secrets import token_hex

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Keep compiled modules, whatever the environment says: hundreds of servers are started, and to
# compile the broker is half of what the start of one costs.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Run the broker's own assertions as they are. pytest rewrites those of a package that has a plugin
# for it, to show values when one fails; the broker is a tenth slower then.
for finder in sys.meta_path:
    if isinstance(finder, AssertionRewritingHook):
        finder._must_rewrite.discard("warren")

TESTS = Path(__file__).parent

NAMED_BY = {
    "spark": {"SparkSession"},
    "cluster": {"RunningCluster", "EtcdServer", "find_etcd"},
    "browser": {"CHROMIUM"},
}
"""A module of tests has a mark when one of these names is in it."""

EARLY = frozenset({"mgmt", "mirror", "simulation", "spark", "system"})
"""These houses have the tests that wait for other processes, and the modules that take longest."""

EARLY_SHARE = 0.6
"""In which part of a run these are begun, so that none of them is the last."""

PROCESSES_MAX = 8
"""More than so many share too few files: a module of tests stays in one process."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two for each core: about half of the tests wait, and leave theirs to the others."""
    return min(2 * (os.cpu_count() or 1), PROCESSES_MAX)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkTogether | None:
    # Groups of xdist (loadgroup) are lost with pytest 9.2.
    return SparkTogether(config, log) if config.getvalue("dist") == "loadfile" else None


class SparkTogether(LoadFileScheduling):
    """Tests of a module run in one process; those of all modules that use Spark do, since starting
    one takes seconds, and half a gigabyte."""

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        return "spark" if _uses_spark(self.config.rootpath / module) else module


@cache
def _marks(module: Path) -> frozenset[str]:
    text = module.read_text(encoding="utf-8")
    return frozenset(
        mark for mark, names in NAMED_BY.items() if any(name in text for name in names)
    )


def _uses_spark(module: Path) -> bool:
    return "spark" in _marks(module)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark in _marks(item.path):
            item.add_marker(mark)
    if hasattr(config, "workerinput"):
        _put_in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Have the garbage collector wait: next to nothing that is collected here becomes garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    _hide_from_collector()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        _hide_from_collector()
    return result


def _hide_from_collector() -> None:
    """Have the garbage collector look at nothing that is there now and lives on.

    Tests, modules and what earlier tests left are millions of objects. Each look at all objects, by
    the collector or by a test, takes up to a second while they are among them.
    """
    gc.collect()
    gc.freeze()


def _put_in_order(items: list[pytest.Item]) -> None:
    """Begin with Spark, and mix tests that wait with tests that compute.

    The scheduler hands modules out in this order.
    """
    modules = sorted({item.path for item in items})
    houses = [[*house] for _, house in groupby(modules, _house)]
    turns = {
        module: _turn(module, number / len(house))
        for house in houses
        for number, module in enumerate(house)
    }
    items.sort(key=lambda item: (turns[item.path], item.path))


def _house(module: Path) -> str:
    """The folder below `tests` that it is in, also in a room of it."""
    return module.relative_to(TESTS).parts[0]


def _turn(module: Path, share_of_house: float) -> float:
    """When the module is handed out: 0 is the beginning of the run, 1 its end."""
    if _uses_spark(module):
        return -1.0
    return share_of_house * (EARLY_SHARE if _house(module) in EARLY else 1.0)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """Let each process of a run begin to collect elsewhere.

    Each compiles what no other has compiled before, and finds the rest compiled.
    """
    worker = getattr(parent.config, "workerinput", None)
    if worker is None:
        return None
    begin = int(worker["workerid"].removeprefix("gw")) / int(worker["workercount"])
    directory: Rotated = Rotated.from_parent(parent, path=path)
    directory.begin = begin
    return directory


class Rotated(pytest.Dir):
    """A directory whose entries are collected from some place in it on, the first ones last."""

    begin = 0.0

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        entries = [*super().collect()]
        first = int(self.begin * len(entries))
        return entries[first:] + entries[:first]


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """Where a server answers as S3 does."""
    server = import_module("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def s3_url(s3_port: int) -> str:
    """A folder in a bucket with nothing in it."""
    bucket = f"bucket-{token_hex(8)}"
    options = f"scheme=http&endpoint_override=127.0.0.1:{s3_port}&allow_bucket_creation=true"
    url = f"s3://key:secret@{bucket}/folder?{options}"
    import_module("pyarrow.fs").FileSystem.from_uri(url)[0].create_dir(bucket)
    return url
