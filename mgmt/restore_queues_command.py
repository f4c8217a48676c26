"""`warren restore-queues`: brings messages of chosen queues from a backup into a running broker.

Exit codes: 0 when all messages were moved, 1 when some were not or the command was refused, 2 for
wrong usage.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from warren.mgmt.backup_command import BACKUPS, progress, refusals
from warren.mgmt.ctl.errors import CtlError
from warren.mgmt.migrate.command import Teller
from warren.mgmt.migrate.errors import MigrateError, WrongAddress
from warren.mgmt.migrate.report import messages_text
from warren.mgmt.migrate.run import MoveOptions, QueueResult
from warren.mgmt.migrate.side import Side, side
from warren.mgmt.process_backups import archive_of_one
from warren.mgmt.restored_queues import bring_over, node_aside, restore_aside


@click.command("restore-queues")
@BACKUPS
@click.argument("target_url", metavar="TARGET")
@click.option(
    "--queue",
    "pattern",
    metavar="PATTERN",
    required=True,
    help="Queues of such names; * and ? as in a shell.",
)
@click.option("--vhost", help="Only in this virtual host.")
@click.option("--backup", "backup_id", metavar="ID", help="Which one. [the latest]")
@click.option(
    "--through",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where there is room for the whole backup meanwhile. [a new temporary directory]",
)
@click.option("--target-amqp", metavar="URL", help="amqp[s]://host:port. [as TARGET tells]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second.")
@click.option("--ca-file", type=click.Path(exists=True, dir_okay=False), help="Whom to trust.")
@click.option("--insecure", is_flag=True, help="Trust any certificate.")
def restore_queues(
    backups: str,
    target_url: str,
    pattern: str,
    vhost: str | None,
    backup_id: str | None,
    directory: Path | None,
    target_amqp: str | None,
    rate: float | None,
    ca_file: str | None,
    insecure: bool,
) -> None:
    """Publish what queues hold in a backup to the queues of the same names of the broker TARGET.

    TARGET is its management URL, http://user:password@host:15672, of an administrator. Messages go
    behind those that are there; a queue that is not there is declared as it was. A run that was cut
    off goes on when it is given the same --through.
    """
    try:
        target = side("target", target_url, target_amqp, ca_file=ca_file, insecure=insecure)
    except WrongAddress as wrong:
        raise click.UsageError(str(wrong)) from wrong
    through = directory or Path(tempfile.mkdtemp(prefix="warren-restore-"))
    options = MoveOptions(vhost, pattern, rate)
    try:
        with refusals(), progress() as tell:
            archive = archive_of_one(backups)
            restore_aside(archive, archive.backup(backup_id), through, tell)
        began = time.monotonic()
        with refusals(), node_aside(through) as source:
            results = asyncio.run(_bring_over(source, target, options))
    except (CtlError, MigrateError, click.ClickException) as failure:
        # Nothing was moved: the directory has no more than the backup.
        if directory is None:
            shutil.rmtree(through)
        if isinstance(failure, click.ClickException):
            raise
        raise click.ClickException(str(failure)) from failure
    for line in messages_text(results, time.monotonic() - began):
        click.echo(line)
    if directory is None and not _goes_on(results):
        shutil.rmtree(through)
    elif any(_is_movable(result) for result in results):
        click.echo(f"{through} has what was not brought over: go on with --through {through}")
    sys.exit(not all(result.all_moved for result in results))


def _is_movable(result: QueueResult) -> bool:
    """Whether another run may bring over more of the queue."""
    return not (result.all_moved or result.left_as_rule)


def _goes_on(results: Sequence[QueueResult]) -> bool:
    """Whether a run that starts from the backup again would bring messages twice, while one that
    goes on brings the rest."""
    some = any(result.moved or result.doubtful for result in results)
    return some and any(_is_movable(result) for result in results)


async def _bring_over(source: Side, target: Side, options: MoveOptions) -> Sequence[QueueResult]:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    teller = Teller(options, sys.stderr.isatty())
    return await bring_over(source, target, options, stop, teller)
