"""What the system tests share: nodes as processes, raw clients that get closed, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_clients import RawClients
from running_cluster import PATIENT, RunningCluster
from server_process import PATIENCE_S, ServerProcess

from warren import Broker


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts nodes on free loopback ports, outside the repository; kills what is left of them."""
    servers: list[ServerProcess] = []

    def start(
        *arguments: str,
        data_dir: Path | None = None,
        config: str | None = None,
        amqp: str | None = "127.0.0.1:0",
        descriptors: int | None = None,
    ) -> ServerProcess:
        every = ["--data-dir", str(data_dir or tmp_path / f"data-{len(servers)}"), *arguments]
        if amqp is not None:
            every += ["--amqp", amqp]
        if config is not None:
            file = tmp_path / f"warren-{len(servers)}.conf"
            file.write_text(config, encoding="utf-8")
            every += ["--config", str(file)]
        servers.append(ServerProcess(every, tmp_path, descriptors=descriptors))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def connect() -> Iterator[RawClients]:
    clients = RawClients()
    yield clients
    clients.abandon_all()


@pytest.fixture
def until() -> Callable[..., Any]:
    """Polls until a condition holds, and returns what it returned; fails when it does not hold in a
    long while."""

    def wait(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> object:
        began = time.monotonic()
        while not (found := condition()):
            waited_s = time.monotonic() - began
            assert waited_s < patience_s, "what was waited for did not come"
            # Less often the longer it takes: for most looks a node has to work.
            time.sleep(min(0.01 + waited_s / 20, 0.1))
        return found

    return wait


@pytest.fixture
def no_clients(until: Callable[..., None]) -> Callable[[Broker], None]:
    """Waits until the broker has forgotten every client."""

    def wait(broker: Broker) -> None:
        until(lambda: broker.call(lambda node: len(node.clients)) == 0)

    return wait


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[Callable[..., RunningCluster]]:
    """Starts a cluster of nodes of these names, and ends all its processes."""
    clusters: list[RunningCluster] = []

    def start(*names: str, more: str = "") -> RunningCluster:
        directory = tmp_path / f"cluster-{len(clusters)}"
        directory.mkdir()
        clusters.append(RunningCluster(directory, *names, more=more))
        clusters[-1].start()
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.end()


@pytest.fixture(scope="module")
def cluster_config(request: pytest.FixtureRequest) -> str:
    """What the nodes of `cluster_of_module` are configured with besides; a module may say more.

    No lease ends, however slow the machine is, unless the module says that it waits for that.
    """
    return "" if getattr(request.module, "LEASES_END", False) else PATIENT


@pytest.fixture(scope="module")
def cluster_of_module(
    tmp_path_factory: pytest.TempPathFactory, cluster_config: str
) -> Iterator[RunningCluster]:
    cluster = RunningCluster(tmp_path_factory.mktemp("cluster"), "a", "b", "c", more=cluster_config)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def running_cluster(cluster_of_module: RunningCluster) -> Iterator[RunningCluster]:
    """Nodes a, b and c, up and linked, without queues; tests of a module share them."""
    yield cluster_of_module
    cluster_of_module.tidy_up()
