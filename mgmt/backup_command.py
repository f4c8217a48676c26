"""`warren backup` and `warren restore`: copies of a node's messages and definitions of one moment.

Exit codes: 0 when all is well, 1 when the command was refused or a backup is damaged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from warren.backup.archive import Archive, ArchiveProgress, Backup
from warren.backup.errors import BackupRefused
from warren.backup.restore import restore as restore_backup
from warren.mgmt.process_backups import (
    archive_of_one,
    archives,
    create_all,
    is_there,
    restore_all,
)
from warren.persist.disk.cluster_file import FILE as CLUSTER_FILE
from warren.persist.disk.data_directory import DataDirectoryRefused, is_of_processes

BACKUPS = click.argument("backups", metavar="BACKUPS")
CHOSEN = click.argument("backup_id", metavar="[ID]", required=False)

TELL_EVERY_S = 0.5


@click.group()
def backup() -> None:
    """Back up a node's messages and definitions, also while it runs.

    BACKUPS is a directory for the backups of one node, or a URL such as s3://bucket/folder.
    """


@backup.command()
@click.argument("data_directory", metavar="DIR", type=click.Path(path_type=Path))
@BACKUPS
def create(data_directory: Path, backups: str) -> None:
    """Back up the data directory DIR; only what is new since the last time is copied."""
    with refusals(), progress() as tell:
        if is_of_processes(data_directory):
            for number, one in create_all(data_directory, backups, tell):
                click.echo(f"process {number}: {_made(one)}")
        else:
            click.echo(_made(Archive.open(backups, create=True).create(data_directory, tell)))


@backup.command("list")
@BACKUPS
def list_backups(backups: str) -> None:
    """List the backups, the oldest first."""
    with refusals():
        found = [(name, archive.backups()) for name, archive in archives(backups)]
    for name, several in found:
        for one in several:
            at = datetime.fromtimestamp(one.created_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            sizes = f"{_size(one.size)}, {_size(one.new_bytes)} of it copied"
            click.echo(f"{name}{one.id}  {at}  {sizes}")


@backup.command()
@BACKUPS
@CHOSEN
def verify(backups: str, backup_id: str | None) -> None:
    """Read all of a backup, the latest or ID, and name files that have changed since.

    Of a broker of several processes it is the latest of each.
    """
    damaged = False
    with refusals(), progress() as tell:
        for name, archive, chosen in _chosen(backups, backup_id):
            wrong = archive.verify(chosen, tell)
            for line in wrong:
                click.echo(line)
            damaged |= bool(wrong)
            how = f"{len(wrong)} files are damaged" if wrong else "whole"
            click.echo(f"{name}{chosen.id}: {how}")
    sys.exit(damaged)


@backup.command()
@BACKUPS
@click.argument("backup_ids", metavar="[ID]...", nargs=-1)
@click.option("--keep", type=click.IntRange(min=1), help="Remove all but the latest so many.")
def remove(backups: str, backup_ids: tuple[str, ...], keep: int | None) -> None:
    """Remove backups, and what only they have.

    Of a broker of several processes the latest so many of each are kept.
    """
    if bool(backup_ids) == (keep is not None):
        raise click.UsageError("name the backups to remove, or say how many to --keep")
    with refusals():
        chosen: list[tuple[Archive, list[Backup]]]
        if keep is not None:
            chosen = [(archive, archive.backups()[:-keep]) for _, archive in archives(backups)]
        else:
            named = [one for backup_id in backup_ids for one in _chosen(backups, backup_id)]
            chosen = [(archive, [one]) for _, archive, one in named]
        freed = sum([archive.remove(several) for archive, several in chosen])
    removed = sum([len(several) for _, several in chosen])
    click.echo(f"{removed} removed, {_size(freed)} freed")


def _chosen(backups: str, backup_id: str | None) -> list[tuple[str, Archive, Backup]]:
    """The latest backup of each archive, or the one with this id. Raises `BackupRefused`."""
    found = archives(backups)
    if backup_id is None:
        return [(name, archive, archive.backup(None)) for name, archive in found]
    for name, archive in found:
        for one in archive.backups():
            if one.id == backup_id:
                return [(name, archive, one)]
    raise BackupRefused(f"there is no backup {backup_id} in {found[0][1].shelf.shown}")


@click.command()
@BACKUPS
@click.argument("data_directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--backup", "backup_id", metavar="ID", help="Which one. [the latest]")
@click.option("--alone", is_flag=True, help="A member of a cluster becomes a node of its own.")
def restore(backups: str, data_directory: Path, backup_id: str | None, alone: bool) -> None:
    """Restore a backup into DIR, which must be empty or missing.

    Then start a node with it: `warren server --data-dir DIR`. It may have another name. Of the node
    that was backed up and the restored one only one may run in a cluster. With --alone the node of
    a cluster comes back without the cluster and its etcd, with the queues it led or mirrored.
    """
    with refusals(), progress() as tell:
        if backup_id is None and not alone and is_there(backups):
            for number, one in restore_all(backups, data_directory, tell):
                click.echo(f"process {number}: {one.id} is restored: {_size(one.size)}")
            return
        archive = archive_of_one(backups)
        chosen = archive.backup(backup_id)
        empty = restore_backup(archive, chosen, data_directory, tell, alone=alone)
    click.echo(f"{chosen.id} is in {data_directory}: {_size(chosen.size)}")
    if (data_directory / CLUSTER_FILE).exists():
        click.echo(
            "It is a member of a cluster, and needs the etcd of that cluster to start; with --alone"
            " it would not."
        )
    for queue in empty:
        click.echo(f"{queue} is empty: other nodes had its messages")


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except (BackupRefused, DataDirectoryRefused) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        words = error.strerror or str(error)
        about = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(about + words) from error


@contextmanager
def progress() -> Iterator[Callable[[ArchiveProgress], None]]:
    """Yields a function that shows progress on a terminal; files and pipes get no such output."""
    shown_at = time.monotonic()

    def tell(progress: ArchiveProgress) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if sys.stderr.isatty() and now >= shown_at + TELL_EVERY_S:
            shown_at = now
            part = f"{_size(progress.done)} of {_size(progress.total)}"
            click.echo(f"\r{part}      ", nl=False, err=True)

    yield tell
    if sys.stderr.isatty():
        click.echo("\r", nl=False, err=True)


def _made(backup: Backup) -> str:
    return f"{backup.id}: {_size(backup.size)}, {_size(backup.new_bytes)} of it copied"


def _size(octets: int) -> str:
    return f"{octets / 1e6:,.1f} MB"
