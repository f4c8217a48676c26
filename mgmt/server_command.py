"""`warren server`: runs a node until it is told to stop.

SIGTERM, SIGINT and `warren ctl stop` stop it: clients are told, definitions are committed. SIGHUP
reads the TLS certificates anew and opens the log file anew. When connections are accepted it prints
one line.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import ssl
import sys
from collections.abc import Mapping

import click
import uvloop

from warren.allocator import keep_freed_memory
from warren.config import Config
from warren.config_check import file_problems
from warren.core.log_line import log_event
from warren.log_output import LogOutput
from warren.mgmt.node_configuration import read_configuration
from warren.node import NodeRefused, RunningNode
from warren.persist.data_directory import DataDirectoryRefused
from warren.rabbitmq_conf import ConfigError

log = logging.getLogger("warren.node")


@click.command()
@click.option("--config", "config_file", metavar="FILE", help="A rabbitmq.conf.")
@click.option("--data-dir", metavar="DIR", help="Where definitions are kept [./warren-data].")
@click.option("--node-name", metavar="NAME", help="The node's name [warren@HOST].")
@click.option("--amqp", metavar="HOST:PORT", help="Where to accept clients [0.0.0.0:5672].")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where to answer HTTP, or none for nowhere [0.0.0.0:15672].",
)
@click.option("--check-config", is_flag=True, help="Say what is wrong with the configuration.")
def server(config_file: str | None, check_config: bool, **flags: str | None) -> None:
    """Run a broker."""
    if check_config:
        sys.exit(_check(config_file, flags))
    try:
        config, warnings = read_configuration(config_file, os.environ, flags)
        output = LogOutput.start(config)
    except (ConfigError, OSError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    for warning in warnings:
        log_event(log, logging.WARNING, "configuration_warning", reason=warning)
    keep_freed_memory()
    _allow_many_files()
    collect_rarely()
    try:
        uvloop.run(_serve(config, output))
    except (DataDirectoryRefused, NodeRefused, OSError, ssl.SSLError) as error:
        print(f"warren: {error}", file=sys.stderr)
        sys.exit(1)


def _check(config_file: str | None, flags: Mapping[str, str | None]) -> int:
    """Print what is wrong with the configuration; returns the exit code."""
    try:
        config, warnings = read_configuration(config_file, os.environ, flags)
        problems = file_problems(config)
    except ConfigError as error:
        warnings, problems = [], error.problems
    except (OSError, ValueError) as error:
        warnings, problems = [], [str(error)]
    for warning in warnings:
        print(f"warning: {warning}")
    for problem in problems:
        print(f"error: {problem}")
    if not problems:
        print("the configuration is fine")
    return 2 if problems else 0


async def _serve(config: Config, output: LogOutput) -> None:
    loop = asyncio.get_running_loop()
    # A start may take long, and a SIGHUP that nobody expects ends the process.
    loop.add_signal_handler(signal.SIGHUP, output.reopen)
    running = await RunningNode.start(config)
    _catch_signals(running, output)
    ports = ", ".join(str(port) for port in running.amqp_ports)
    tls = "".join(f", amqps {port}" for port in running.tls_ports)
    http = "".join(f", {kind} {port}" for kind, port in running.http_ports)
    print(f"warren {running.node.name} ready: amqp {ports}{tls}{http}", flush=True)
    while not await _until_it_stops(running):
        # Without a say in what the cluster decides, a node must not serve anybody.
        log_event(log, logging.WARNING, "node_pausing", reason="the cluster's store is lost")
        again = running.as_before(config)
        await running.stop()
        running = await RunningNode.start(again)
        _catch_signals(running, output)


def _catch_signals(running: RunningNode, output: LogOutput) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.stop_wanted.set)

    def hang_up() -> None:
        output.reopen()
        running.reload_certificates()

    loop.add_signal_handler(signal.SIGHUP, hang_up)


async def _until_it_stops(running: RunningNode) -> bool:
    """Serve until somebody asks the node to stop (and stop it), or until it has to pause."""
    ports = ", ".join(str(port) for port in running.amqp_ports)
    log_event(log, logging.INFO, "node_started", node=running.node.name, amqp=ports)
    if not await running.stop_or_pause():
        return False
    log_event(log, logging.INFO, "node_stopping", node=running.node.name)
    await running.stop()
    log_event(log, logging.INFO, "node_stopped", node=running.node.name)
    return True


def collect_rarely() -> None:
    """Let the cycle collector look at young objects only, and at many at a time.

    What piles up in a broker is messages, which are in no cycles; looking at each of them three
    times took a fifth of the time of an acknowledged publish, and looking at all of them at once
    would stop the node for as long as there are messages. Connections, channels and queues break
    their cycles when they end.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 1_000_000)


def _allow_many_files() -> None:
    """Raise the limit of open files, one for each connection, to what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
