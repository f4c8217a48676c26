"""`warren server`: runs a node until it is told to stop.

SIGTERM, SIGINT and `warren ctl stop` stop it: clients are told, definitions are committed. SIGHUP
makes it read the TLS certificates and open the log file anew. It prints one line when it accepts
connections.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import logging
import os
import resource
import signal
import ssl
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import uvloop

from warren.addresses import web_address
from warren.allocator import keep_freed_memory
from warren.config import Config
from warren.config_check import problems_beyond_text
from warren.core.log_line import log_event
from warren.faults import NodeFailed
from warren.log_console import print_error, print_line
from warren.log_output import LogOutput
from warren.mgmt.definitions.errors import DefinitionsFileRefused
from warren.mgmt.exit_codes import EXIT_FAULT, EXIT_NOT_STARTED, EXIT_UNWRITTEN
from warren.mgmt.node_configuration import examine_configuration, read_configuration
from warren.node import Joined, NodeEnding, RunningNode
from warren.node_refused import NodeRefused, StoreLost
from warren.persist.disk.data_directory import DataDirectoryRefused, is_of_processes
from warren.rabbitmq_conf import ConfigError
from warren.service_manager import ServiceManager

if TYPE_CHECKING:
    from warren.mgmt.stopped_node import StoppedNode

log = logging.getLogger("warren.node")

START_AGAIN_S = 0.5
"""Time until a start after a pause is tried again: an address was in use, or etcd lost again."""

NO_THREAD = "can't start new thread"
"""What Python says then, in an error that has no type of its own."""


Serve: TypeAlias = Callable[[Config, LogOutput], Coroutine[Any, Any, int]]
"""The work of a process from its start to its end; returns its exit code."""


REFUSALS = (DataDirectoryRefused, DefinitionsFileRefused, NodeRefused, OSError, ssl.SSLError)
"""Reasons not to start that are told in a line."""


@click.command()
@click.option("--config", "config_file", metavar="FILE", help="A rabbitmq.conf.")
@click.option("--data-dir", metavar="DIR", help="Where definitions are kept [./warren-data].")
@click.option("--node-name", metavar="NAME", help="The node's name [warren@HOST].")
@click.option("--amqp", metavar="HOST:PORT", help="Where to accept clients [:::5672].")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where to answer HTTP, or none for nowhere [:::15672].",
)
@click.option(
    "--processes",
    metavar="N",
    help="How many processes serve the clients, or auto: one for each core [1].",
)
@click.option("--check-config", is_flag=True, help="Say what is wrong with the configuration.")
def server(config_file: str | None, check_config: bool, **flags: str | None) -> None:
    """Run a broker."""
    if check_config:
        sys.exit(_check(config_file, flags))
    try:
        config, warnings = read_configuration(config_file, os.environ, flags)
        output = LogOutput.start(config)
    except (ConfigError, OSError) as error:
        raise click.UsageError(str(error)) from error
    for warning in warnings:
        log_event(log, logging.WARNING, "configuration_warning", reason=warning)
    if config.processes != 1 or (config.data_dir and is_of_processes(config.data_dir)):
        sys.exit(run(config, output, import_module("warren.mgmt.processes.supervisor").supervise))
    sys.exit(run(config, output, serve))


def run(config: Config, output: LogOutput, serve: Serve) -> int:
    """Prepare this process and let it serve; returns the exit code."""
    keep_freed_memory()
    _allow_many_files()
    collect_rarely()
    give_way_quickly()
    try:
        return uvloop.run(serve(config, output))
    except REFUSALS as error:
        print_error(f"warren: {_which(config)}{_told(error, config)}")
        return 1
    except NodeFailed as error:
        print_error(f"warren: {_which(config)}{error}")
        return EXIT_FAULT
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        reason = "the system starts no more threads for this user (ulimit -u)"
        print_error(f"warren: {_which(config)}{reason}")
        return EXIT_NOT_STARTED


def _which(config: Config) -> str:
    """Names the process in an error text, if the broker has several."""
    return "" if config.process is None else f"process {config.process.number}: "


def _check(config_file: str | None, flags: Mapping[str, str | None]) -> int:
    """Print the problems of the configuration; returns the exit code."""
    config, warnings, problems = examine_configuration(config_file, os.environ, flags)
    problems += problems_beyond_text(config)
    if config.load_definitions is not None and config.load_definitions.exists():
        at_start = import_module("warren.mgmt.definitions.at_start")
        unusable = at_start.file_problems(config.load_definitions)
        if not unusable:
            trial = import_module("warren.mgmt.definitions.trial")
            unusable = asyncio.run(trial.problems_of_items(config, config.load_definitions))
        problems += unusable
    for warning in warnings:
        print(f"warning: {warning}")
    for problem in problems:
        print(f"error: {problem}")
    if not problems:
        print("the configuration is fine")
    return 2 if problems else 0


def _told(error: Exception, config: Config) -> str:
    """The text of an error because of which the node did not start, or stopped."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"nothing can be written to {config.data_dir}: no space left on its disk"
    return str(error)


def _pages(config: Config, running: RunningNode) -> str:
    """The address of the web pages, for users to click at; empty if there are none."""
    management = running.management
    if management is None:
        return ""
    for protocol, addresses, ports in (
        ("http", config.http_listeners, management.http_ports),
        ("https", config.http_tls_listeners, management.https_ports),
    ):
        if addresses:
            return f" ({web_address(protocol, addresses[0], ports[0], config.path_prefix)})"
    return ""


async def serve(config: Config, output: LogOutput) -> int:
    """Run a node until its process is to end. Raises the errors of a start, and `NodeFailed`."""
    loop = asyncio.get_running_loop()
    # A start may take long, and a SIGHUP without a handler would end the process.
    loop.add_signal_handler(signal.SIGHUP, output.reopen)
    manager = ServiceManager.of(os.environ, os.getpid())
    manager.stay_alive(loop)
    life = _Life(config, output, manager)
    if await life.begin():
        await life.live()
    manager.close()
    return EXIT_UNWRITTEN if life.left_unwritten else 0


class _Life:
    """The life of a node until its process ends, with pauses and `ctl stop_app`."""

    def __init__(self, config: Config, output: LogOutput, manager: ServiceManager) -> None:
        self._manager = manager
        self._config = config
        self._output = output
        # Whether the node has stopped without writing everything.
        self.left_unwritten = False
        # The node that serves, or has paused. `live` has no variable for it, which would keep a
        # stopped node in memory.
        self._node: RunningNode | None = None
        # Set by a signal. Other reasons to end come from the node itself (`RunningNode.ends`).
        self._stop_wanted = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_wanted.set)

    async def begin(self) -> bool:
        """Start the node and say that it is ready; False if a signal came before that.

        Raises the errors of a start.
        """
        running = self._node = await self._start(self._config)
        if running is None:
            return False
        ports = ", ".join(str(port) for port in running.amqp_ports)
        tls = "".join(f", amqps {port}" for port in running.tls_ports)
        http = "".join(f", {kind} {port}" for kind, port in running.http_ports)
        print_line(
            f"warren {running.node.name} ready:"
            f" amqp {ports}{tls}{http}{_pages(self._config, running)}",
            sys.stdout,
        )
        self._manager.ready(f"amqp {ports}{tls}{http}")
        return True

    async def live(self) -> None:
        """Serve until the process is to end. Raises the errors of a start after a pause."""
        assert self._node is not None
        name = self._node.node.name
        while self._node is not None:
            ending = await self._serve(self._node)
            await self._stop(self._node, ending)
            if ending is NodeEnding.STOP:
                self._node = None
            elif ending is NodeEnding.PAUSE:
                self._node = await self._wait_for_cluster(self._node)
                # The paused node was shown until now. Its objects refer to each other, and only a
                # full collection frees such objects when they are old (`collect_rarely`).
                gc.collect()
            else:
                self._node = None
                gc.collect()
                self._node = await self._stay_stopped(name)
        log_event(log, logging.INFO, "node_stopped", node=name)

    async def _stop(self, node: RunningNode, ending: NodeEnding) -> None:
        """Stop the node; `ending` says why, for the log and the clients. Raises `NodeFailed`."""
        name = node.node.name
        if ending is NodeEnding.STOP:
            self._manager.stopping()
            log_event(log, logging.INFO, "node_stopping", node=name)
        elif ending is NodeEnding.PAUSE:
            self._manager.status("paused: the cluster's store is lost")
            # A node that takes no part in the cluster's decisions must not serve clients.
            log_event(log, logging.WARNING, "node_pausing", reason="the cluster's store is lost")
        elif ending is NodeEnding.STOP_APP:
            log_event(log, logging.WARNING, "node_stopping", node=name, process="stays")
        self._config = node.as_before(self._config)
        if ending is NodeEnding.PAUSE:
            assert node.cluster is not None
            await node.stop(node.cluster.pause_reason)
        else:
            await node.stop()
        if node.faults.first is not None:
            raise NodeFailed(node.faults.first)
        self.left_unwritten = node.left_unwritten

    async def _serve(self, running: RunningNode) -> NodeEnding:
        def hang_up() -> None:
            self._output.reopen()
            running.reload_certificates()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        ports = ", ".join(str(port) for port in running.amqp_ports)
        self._manager.status(f"serving, amqp {ports}")
        log_event(log, logging.INFO, "node_started", node=running.node.name, amqp=ports)
        ends = asyncio.create_task(running.ends())
        stopped = asyncio.create_task(self._stop_wanted.wait())
        try:
            await asyncio.wait((ends, stopped), return_when=asyncio.FIRST_COMPLETED)
            return ends.result() if ends.done() else NodeEnding.STOP
        finally:
            ends.cancel()
            stopped.cancel()
            loop.add_signal_handler(signal.SIGHUP, self._output.reopen)

    async def _wait_for_cluster(self, paused: RunningNode) -> RunningNode | None:
        """Show the paused node's last state until the cluster is back, then start the node.

        None when the process is to end.
        """
        try:
            await paused.show(self._config)
        except (OSError, ssl.SSLError) as error:
            log_event(log, logging.WARNING, "pause_not_shown", reason=error)
        stop = (paused.stop_wanted, paused.stop_app_wanted)
        try:
            node = await self._start_again(paused.show_nothing, stop)
        finally:
            await paused.show_nothing()
        if node is None and paused.stop_app_wanted.is_set():
            return await self._stay_stopped(paused.node.name)
        return node

    async def _start_again(
        self, joined: Joined, stop: Collection[asyncio.Event]
    ) -> RunningNode | None:
        """Start the node with the same addresses as before.

        Another socket may have taken one of them meanwhile, as the local end of a connection does:
        then this waits until the address is free. It also waits for an etcd that is lost once more.
        What it waits for is logged when it changes.
        """
        told = ""
        while True:
            try:
                return await self._start(patient(self._config), joined, stop)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                event, reason = "address_in_use", str(error)
            except StoreLost as lost:
                event, reason = "store_lost_again", str(lost)
            if reason != told:
                log_event(log, logging.WARNING, event, reason=reason, action="waiting")
                told = reason
            with _waits_for(self._stop_wanted, *stop) as waits:
                ended, _ = await asyncio.wait(
                    waits, timeout=START_AGAIN_S, return_when=asyncio.FIRST_COMPLETED
                )
            if ended:
                return None

    async def _start(
        self, config: Config, joined: Joined | None = None, stop: Iterable[asyncio.Event] = ()
    ) -> RunningNode | None:
        """Start the node; None if a signal or an event of `stop` comes first."""
        starting = asyncio.create_task(RunningNode.start(config, joined))
        with _waits_for(self._stop_wanted, *stop) as stopped:
            await asyncio.wait((starting, *stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait((starting,))
        return None

    async def _stay_stopped(self, name: str) -> RunningNode | None:
        """Wait until `ctl start_app` succeeds; None when the process is to end."""
        stopped_node = import_module("warren.mgmt.stopped_node")
        failure = ""
        while True:
            stopped: StoppedNode = await stopped_node.StoppedNode.open(self._config, name, failure)
            try:
                with _waits_for(stopped.ended, self._stop_wanted) as waits:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await stopped.close()
            if not stopped.start_wanted:
                return None
            try:
                return await self._start(self._config)
            except REFUSALS as error:
                failure = str(error)
                log_event(log, logging.ERROR, "node_not_started", reason=error)


@contextmanager
def _waits_for(*events: asyncio.Event) -> Iterator[Sequence[asyncio.Task[bool]]]:
    """Tasks that wait for these events, cancelled when the context ends."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        yield waits
    finally:
        for wait in waits:
            wait.cancel()


def patient(config: Config) -> Config:
    """The configuration with unlimited attempts to reach the cluster at the start."""
    assert config.cluster is not None
    cluster = dataclasses.replace(config.cluster, start_attempts=sys.maxsize)
    return dataclasses.replace(config, cluster=cluster)


def collect_rarely() -> None:
    """Let the cycle collector look at young objects only, and at some thousands at a time.

    Most objects that pile up in a broker are messages, which are in no cycles. To look at each of
    them three times took a fifth of the time of an acknowledged publish, and to look at all of them
    at once would stop the node for longer the more messages there are. Connections, channels and
    queues break their cycles when they end. Each object is looked at twice, whatever the threshold;
    with a threshold of a hundred thousand one collection would take 40 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(4_000, 1, 1_000_000)


def give_way_quickly() -> None:
    """Have threads that compute give way to the loop after half a millisecond.

    The loop releases the interpreter lock at each system call, some ten times for a request and its
    answer, and would wait 5 ms each time while a thread encodes definitions for the disk.
    """
    sys.setswitchinterval(0.0005)


def _allow_many_files() -> None:
    """Raise the limit of open files, one for each connection, to what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
