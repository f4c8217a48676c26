"""`warren server`: runs a node until it is told to stop.

SIGTERM and SIGINT stop it: clients are told, definitions are committed. SIGHUP reads the TLS
certificates anew. When connections are accepted it prints one line.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import ssl
import sys
from pathlib import Path

import click
import uvloop

from warren.allocator import keep_freed_memory
from warren.config import Config, override
from warren.node import RunningNode
from warren.persist.data_directory import DataDirectoryRefused
from warren.rabbitmq_conf import ConfigError, Loaded, parse_config

log = logging.getLogger("warren")


@click.command()
@click.option("--config", "config_file", metavar="FILE", help="A rabbitmq.conf.")
@click.option("--data-dir", metavar="DIR", help="Where definitions are kept [./warren-data].")
@click.option("--node-name", metavar="NAME", help="The node's name [warren@HOST].")
@click.option("--amqp", metavar="HOST:PORT", help="Where to accept clients [0.0.0.0:5672].")
def server(
    config_file: str | None, data_dir: str | None, node_name: str | None, amqp: str | None
) -> None:
    """Run a broker."""
    try:
        loaded = _read(config_file)
        config = override(loaded.config, data_dir=data_dir, node_name=node_name, amqp=amqp)
    except (ConfigError, OSError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    _start_logging(config)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    keep_freed_memory()
    _allow_many_files()
    collect_rarely()
    try:
        uvloop.run(_serve(config))
    except (DataDirectoryRefused, OSError, ssl.SSLError) as error:
        print(f"warren: {error}", file=sys.stderr)
        sys.exit(1)


def _read(config_file: str | None) -> Loaded:
    if config_file is None:
        return Loaded(Config(), [])
    return parse_config(Path(config_file).read_text(encoding="utf-8"), config_file)


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = await RunningNode.start(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, running.reload_certificates)
    ports = ", ".join(str(port) for port in running.amqp_ports)
    tls = "".join(f", amqps {port}" for port in running.tls_ports)
    print(f"warren {running.node.name} ready: amqp {ports}{tls}", flush=True)
    await stop.wait()
    await running.stop()


def _start_logging(config: Config) -> None:
    level = logging.CRITICAL + 1 if config.log_level == "none" else config.log_level.upper()
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


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
