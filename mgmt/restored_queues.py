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
from warren.mgmt.ctl.errors import CtlError, Refused
from warren.mgmt.migrate.run import (
    Audience,
    Listed,
    Options,
    QueueResult,
    list_queues,
    move_messages,
)
from warren.mgmt.migrate.side import AmqpAddress, Side
from warren.persist.disk.data_directory import IDENTITY_FILE

TAGS = ("administrator",)
NOT_FOUND = 404


def restore_aside(archive: Archive, backup: Backup, directory: Path, tell: Tell) -> None:
    """Restore a backup into `directory`, unless that was done before.

    Raises `BackupRefused`, OSError.
    """
    if not (directory / IDENTITY_FILE).exists():
        restore(archive, backup, directory, tell, alone=True)


@contextmanager
def node_aside(directory: Path) -> Iterator[Side]:
    """A node that starts from the directory and stops when the context ends."""
    user, password = f"warren-restore-{secrets.token_hex(8)}", secrets.token_urlsafe(24)
    with Broker(data_dir=directory, http_port=0) as broker:
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
    source: Side, target: Side, options: Options, stop: asyncio.Event, audience: Audience
) -> list[QueueResult]:
    """Move the messages of the chosen queues; a queue that the target lacks is declared as it was.

    Raises `CtlError`, `MigrateError`, and `BackupRefused` if no queue matches.
    """
    listed = await asyncio.to_thread(list_queues, source, options)
    if not listed:
        raise BackupRefused("the backup has no such queue")
    for queue in listed:
        await asyncio.to_thread(_declare, source, target, queue)
    return await move_messages(source, target, options, stop, audience)


def _declare(source: Side, target: Side, queue: Listed) -> None:
    try:
        target.get("queues", queue.vhost, queue.name)
    except Refused as refusal:
        if refusal.status != NOT_FOUND:
            raise
        row = source.get("queues", queue.vhost, queue.name)
        definition = {name: row[name] for name in ("durable", "auto_delete", "arguments")}
        try:
            target.put("queues", queue.vhost, queue.name, body=definition)
        except Refused as refused:
            raise CtlError(f"queue '{queue.name}' in vhost '{queue.vhost}': {refused}") from refused
