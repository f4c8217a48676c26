"""Brings chosen queues of a backup into a running broker.

The backup is restored into a directory of its own. A node that only this process reaches starts
from it, and its messages are moved to the broker as `warren migrate` moves them: a message is
acknowledged at that node after the broker has confirmed it. Moved messages are gone from the
directory, so a run that was cut off can continue with it. The backup stays unchanged.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warren.backup.archive import Archive, Backup, Tell
from warren.backup.errors import BackupRefused
from warren.backup.restore import restore
from warren.embedded import Broker
from warren.mgmt.ctl.errors import CtlError, RequestRefused
from warren.mgmt.migrate.run import (
    MoveAudience,
    MoveOptions,
    QueueResult,
    SourceQueue,
    list_queues,
    move_messages,
)
from warren.mgmt.migrate.side import AmqpAddress, Side
from warren.persist.disk.data_directory import IDENTITY_FILE

TAGS = ("administrator",)
NOT_FOUND = 404


MARKER = "restored-backup"
"""The file in a restored directory that names the backup. Messages are moved only out of a
directory with this file, and never out of the data directory of another node."""


def restore_aside(archive: Archive, backup: Backup, directory: Path, tell: Tell) -> None:
    """Restore a backup into `directory`, unless that was done before.

    Raises `BackupRefused` also if the directory holds something else, OSError.
    """
    marker = directory / MARKER
    if not (directory / IDENTITY_FILE).exists():
        restore(archive, backup, directory, tell, alone=True)
        marker.write_text(f"{backup.id}\n", "ascii")
    elif not marker.exists():
        raise BackupRefused(f"{directory} is the data directory of a node, not a restored backup")
    elif (found := marker.read_text("ascii").strip()) != backup.id:
        raise BackupRefused(f"{directory} has what is left of backup {found}, not of {backup.id}")


@contextmanager
def node_aside(directory: Path) -> Iterator[Side]:
    """A node that starts from the directory and stops when the context ends.

    Its shovels and federation links stand still: they would take the messages elsewhere.
    """
    user, password = f"warren-restore-{secrets.token_hex(8)}", secrets.token_urlsafe(24)
    with Broker(data_dir=directory, http_port=0, runs_links=False) as broker:
        broker.add_user(user, password, TAGS)
        try:
            for vhost in broker.call(lambda node: [*node.vhosts]):
                broker.set_permissions(user, vhost)
            address = AmqpAddress("amqp", broker.host, broker.port)
            yield Side("backup", broker.http_url, user, password, address)
        finally:
            # The directory may be used for another purpose later.
            broker.delete_user(user)


async def bring_over(
    source: Side, target: Side, options: MoveOptions, stop: asyncio.Event, audience: MoveAudience
) -> list[QueueResult]:
    """Move the messages of the chosen queues; a queue that the target lacks is declared as it was.

    Queues that are never moved, such as those of delayed messages, are named as left. Raises
    `CtlError`, `MigrateError`, and `BackupRefused` if no queue matches, or none that can be moved.
    """
    listed = await asyncio.to_thread(list_queues, source, options)
    if not listed:
        raise BackupRefused("the backup has no such queue")
    if all(queue.left_because for queue in listed):
        queue = listed[0]
        raise BackupRefused(
            f"queue '{queue.name}' cannot be brought over: {queue.left_because}; `warren restore`"
            " makes a node that has it"
        )
    for queue in listed:
        if not queue.left_because:
            await asyncio.to_thread(_declare, source, target, queue)
    return await move_messages(source, target, options, stop, audience)


def _declare(source: Side, target: Side, queue: SourceQueue) -> None:
    try:
        target.get("queues", queue.vhost, queue.name)
    except RequestRefused as refusal:
        if refusal.status != NOT_FOUND:
            raise
        row = source.get("queues", queue.vhost, queue.name)
        definition = {name: row[name] for name in ("durable", "auto_delete", "arguments")}
        try:
            target.put("queues", queue.vhost, queue.name, body=definition)
        except RequestRefused as refused:
            raise CtlError(f"queue '{queue.name}' in vhost '{queue.vhost}': {refused}") from refused
