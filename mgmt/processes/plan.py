"""Gives each process its name, directory and configuration. Only decides; does no I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from warren.config import ClusterConfig, Config, Listener, ProcessConfig
from warren.core.resources.memory_monitor import share
from warren.persist.disk.data_directory import PROCESSES

LOOPBACK = "127.0.0.1"
STORE_ENDPOINT = "http://processes"
"""A placeholder: requests go to the supervisor's socket."""
STORE_PREFIX = "/warren/processes"
SUPERVISOR_SOCKET = "supervisor.sock"

Addresses = tuple[Listener, ...]


class Shared(NamedTuple):
    """The addresses at which clients reach all processes; no port is 0."""

    amqp: Addresses
    amqp_tls: Addresses
    http: Addresses
    http_tls: Addresses
    metrics: Addresses
    metrics_tls: Addresses


class ProcessPlan(NamedTuple):
    """The plan for all processes of a broker.

    `first` is the name of the first process, and of the machine; `secret` protects the links if the
    configuration has none. `size` is the number of processes.
    """

    config: Config
    first: str
    size: int
    ports: Shared
    secret: bytes

    def numbers(self) -> range:
        return range(1, self.size + 1)

    def name(self, number: int) -> str:
        return name_of(self.first, number)

    def directory(self, number: int) -> Path:
        return directory_of(data_directory(self.config), number)

    def configuration(self, number: int) -> Config:
        """The configuration of one process; limits of a node are divided among all."""
        config, ports = self.config, self.ports
        return dataclasses.replace(
            config,
            data_dir=self.directory(number),
            node_name=self.name(number),
            process=ProcessConfig(number, self.size, supervisor_socket(config)),
            amqp_listeners=ports.amqp,
            tls_listeners=ports.amqp_tls,
            http_listeners=ports.http,
            http_tls_listeners=ports.http_tls,
            metrics_listeners=ports.metrics,
            metrics_tls_listeners=ports.metrics_tls,
            memory_watermark=share(config.memory_watermark, self.size),
            snapshot_rate=max(1, config.snapshot_rate // self.size),
            trace_size_limit=max(1, config.trace_size_limit // self.size),
            cluster_name=config.cluster_name or self.first,
            cluster=self._cluster(number),
        )

    def _cluster(self, number: int) -> ClusterConfig:
        cluster = self.config.cluster
        if cluster is None:
            return dataclasses.replace(
                self.config.process_cluster,
                etcd_endpoints=(STORE_ENDPOINT,),
                etcd_prefix=STORE_PREFIX,
                etcd_user=None,
                etcd_ssl=None,
                etcd_socket=supervisor_socket(self.config),
                secret=self.secret,
                secret_file=None,
                # The links stay on the machine, as the definitions do.
                listener=Listener(LOOPBACK, 0),
                advertised_host=LOOPBACK,
                link_ssl=None,
                machine=self.first,
            )
        host, port = cluster.listener
        listener = Listener(host, port + number - 1 if port else 0)
        return dataclasses.replace(cluster, listener=listener, machine=self.first)


def data_directory(config: Config) -> Path:
    assert config.data_dir is not None, "checked at the start"
    return config.data_dir


def supervisor_socket(config: Config) -> Path:
    return data_directory(config).absolute() / PROCESSES / SUPERVISOR_SOCKET


def name_of(first: str, number: int) -> str:
    """The name of a process: `warren@host`, `warren-2@host`, `warren-3@host` ..."""
    if number == 1:
        return first
    name, at, host = first.partition("@")
    return f"{name}-{number}{at}{host}"


def directory_of(data_dir: Path, number: int) -> Path:
    """The directory of a process: the first one has the data directory itself, as the only process
    of an ordinary broker has."""
    return data_dir if number == 1 else data_dir / PROCESSES / str(number)


def too_few(first: str, count: int, queues: Mapping[str, int], largest: int) -> str | None:
    """Why a directory cannot be used with so few processes; None if it can.

    `queues` is the number of queues that each node leads, by node name; `largest` is the highest
    number that a process ever had.
    """
    beyond = {number: queues.get(name_of(first, number), 0) for number in range(1, largest + 1)}
    left = {number: led for number, led in beyond.items() if number > count and led}
    if not left:
        return None
    needed = max(left)
    what = ", ".join(f"{led} in process {number}" for number, led in sorted(left.items()))
    return (
        f"with {count} of its processes this broker would lack queues ({what}): start it with"
        f" --processes {needed}, and delete those queues or move their messages before you start"
        " it with fewer"
    )


def data_lost(
    data_dir: Path, first: str, lost: Sequence[int], queues: Mapping[str, int], definitions: Path
) -> str | None:
    """Why a broker cannot be started; None if it can.

    `lost` are the processes that have been here before and have no data now, `queues` is as for
    `too_few`, and `definitions` is the file of the definitions that processes share.
    """
    for number in lost:
        led = queues.get(name_of(first, number), 0)
        if led:
            return (
                f"{directory_of(data_dir, number)} has no data, and process {number} had"
                f" {led} {'queue' if led == 1 else 'queues'} there: put it back. If it is lost for"
                f" good, remove {definitions}: the next start has the definitions"
                f" from the first process's copy, and the queues of process {number} are empty"
            )
    return None
