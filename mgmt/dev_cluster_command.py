"""`warren dev-cluster N`: a cluster of N nodes on this machine, to try one out.

The cluster runs until Ctrl-C or SIGTERM. Its files are deleted then, unless --data-dir names a
place for them. Exit code 0 after such a stop, 1 when the cluster cannot be started or all of its
nodes have ended.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from warren.config import AMQP_PORT, HTTP_PORT
from warren.mgmt.dev_cluster import HOST, ClusterNotStarted, DevCluster

NODES_MAX = 9
"""More nodes than a trial on one machine needs."""

PORT = click.IntRange(0, 65535 - NODES_MAX)


@click.command("dev-cluster")
@click.argument("count", type=click.IntRange(1, NODES_MAX), default=3, metavar="[N]")
@click.option("--etcd", "etcd_url", metavar="URL", help="Use this etcd [one of its own].")
@click.option(
    "--amqp-port",
    type=PORT,
    default=AMQP_PORT,
    metavar="PORT",
    help="Of the first node, the others follow; 0 for any [5672].",
)
@click.option(
    "--http-port", type=PORT, default=HTTP_PORT, metavar="PORT", help="The same for HTTP [15672]."
)
@click.option(
    "--data-dir", metavar="DIR", help="Where all data is kept [a directory removed in the end]."
)
def dev_cluster(
    count: int, etcd_url: str | None, amqp_port: int, http_port: int, data_dir: str | None
) -> None:
    """Run a cluster of N nodes on this machine [3]."""
    kept = data_dir is not None
    directory = Path(data_dir or tempfile.mkdtemp(prefix="warren-cluster-")).absolute()
    try:
        code = asyncio.run(_run(count, directory, kept, etcd_url, amqp_port, http_port))
    except (ClusterNotStarted, OSError) as error:
        print(f"warren: {error}", file=sys.stderr)
        code = 1
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)
    sys.exit(code)


async def _run(
    count: int,
    directory: Path,
    kept: bool,
    etcd_url: str | None,
    amqp_port: int,
    http_port: int,
) -> int:
    stop_wanted = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop_wanted.set)
    cluster = DevCluster(
        count, directory, amqp_port=amqp_port, http_port=http_port, etcd_url=etcd_url, say=_say
    )
    waits = [asyncio.create_task(event.wait()) for event in (stop_wanted, cluster.all_ended)]
    starting = asyncio.create_task(cluster.start())
    try:
        await asyncio.wait((starting, waits[0]), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return 0
        starting.result()
        for node in cluster.nodes:
            amqp = f"amqp://guest:guest@{HOST}:{node.amqp_port}"
            _say(f"{node.name} ready: {amqp} http://{HOST}:{node.http_port}")
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return 0 if stop_wanted.is_set() else 1
    finally:
        for task in (starting, *waits):
            task.cancel()
        await asyncio.wait((starting,))
        await cluster.stop()
        if not kept:
            await cluster.forget()


def _say(line: str) -> None:
    print(line, flush=True)
