"""`warren export`: messages of a store as Parquet, and the snapshots they are read from.

Exit codes: 0 for success; 1 when `verify` finds damage, and when damaged or lost messages end an
export; 2 for wrong usage, other errors, and when there is nothing to read.

The packages of the extra `spark` are imported by the commands that need them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from warren.backup.errors import ShelfRefused
from warren.extras import install_command
from warren.spark_export.duration import Seconds
from warren.spark_export.errors import DataLost, OptionRefused, RecordDamaged, SparkExportError
from warren.spark_export.snapshot.snapshot_file import utc_text
from warren.spark_export.spark_start import Master, check_java, started_spark

if TYPE_CHECKING:
    from warren.spark_export.export.lake_table import TableChoice
    from warren.spark_export.export.manifest import Manifest
    from warren.spark_export.export.spark_job import ExportProgress
    from warren.spark_export.snapshot.cursor import ListedCursor
    from warren.spark_export.snapshot.plan import QueueSelector
    from warren.spark_export.snapshot.snapshot import Snapshot

PARQUET = "parquet"
DAMAGED = 1
REFUSED = 2

BAR_WIDTH = 30

F = TypeVar("F", bound=Callable[..., object])

DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


def _not_empty(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse an empty text, as a shell variable without a value gives it: as a path it would be the
    working directory."""
    if not value:
        raise click.BadParameter("it is empty; the working directory is .")
    return value


DESTINATION = click.argument("destination", metavar="DEST", callback=_not_empty)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
EXPORT = click.option(
    "--export", "export_id", metavar="NAME", help="The export; the newest if not given."
)


class ExportRefused(click.ClickException):
    exit_code = REFUSED


class ExportFailed(click.ClickException):
    exit_code = DAMAGED


STATE = click.option(
    "--state", is_flag=True, help="Fail if a node that runs cannot be asked about deliveries."
)
LEASE = click.option(
    "--lease",
    default="1h",
    show_default=True,
    type=Seconds(),
    help="How long the snapshot is kept.",
)
SNAPSHOTS_IN = click.option(
    "--snapshot-directory",
    type=click.Path(path_type=Path),
    help="A directory for the snapshot, if not the store.",
)


def choosing_queues(command: F) -> F:
    """Add the options that choose queues."""
    for option in (
        click.option("--pattern", metavar="REGEX", help="Only queues whose whole name matches."),
        click.option(
            "--queue",
            "queues",
            multiple=True,
            metavar="NAME",
            help="Only this queue; may be repeated.",
        ),
        click.option("--vhost", metavar="NAME", help="Only queues of this virtual host."),
    ):
        command = option(command)
    return command


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors into a line of text and an exit code."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = _package(error)
        if package not in ("numpy", "pyarrow", "pyspark", "pandas"):
            raise
        raise ExportRefused(f"{package} is not installed: {install_command('spark')}") from error
    except (DataLost, RecordDamaged) as error:
        raise ExportFailed(str(error)) from error
    except (SparkExportError, ShelfRefused, OSError) as error:
        raise ExportRefused(str(error)) from error


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").split(".")[0]


@click.group()
def export() -> None:
    """Write the messages of a store as Parquet files. The node may run; it has no work with it."""


# Exports


@export.command()
@DIRECTORY
@DESTINATION
@choosing_queues
@click.option(
    "--export", "export_id", metavar="NAME", help="The export's name; the time of now if not given."
)
@click.option(
    "--since",
    metavar="NAME",
    help="Only messages that came after this export; `latest` is the newest.",
)
@click.option(
    "--start", metavar="TIME", help="Only messages enqueued at this time (ISO 8601) or later."
)
@click.option("--end", metavar="TIME", help="Only messages enqueued before this time (ISO 8601).")
@click.option(
    "--target-file-size",
    default="128m",
    show_default=True,
    help="The size of a file, in bytes of uncompressed records.",
)
@click.option(
    "--codec",
    default="zstd",
    show_default=True,
    type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]),
)
@click.option(
    "--headers",
    default="map",
    show_default=True,
    type=click.Choice(["map", "json", "variant", "none"]),
)
@click.option(
    "--body", default="binary", show_default=True, type=click.Choice(["binary", "string", "json"])
)
@click.option(
    "--mode",
    default="PERMISSIVE",
    show_default=True,
    type=click.Choice(["PERMISSIVE", "DROPMALFORMED", "FAILFAST"], case_sensitive=False),
    help="What to do with damaged records.",
)
@click.option("--allow-data-loss", is_flag=True, help="Leave out messages whose log file is gone.")
@STATE
@click.option("--snapshot", metavar="ID", help="Read this snapshot, and keep it.")
@SNAPSHOTS_IN
@LEASE
@click.option(
    "--format",
    "table_format",
    default=PARQUET,
    show_default=True,
    type=click.Choice([PARQUET, "delta", "iceberg"]),
    help="Append the files to a table at DEST, exactly once.",
)
@click.option("--table", metavar="CATALOG.NAMESPACE.TABLE", help="The name of the Iceberg table.")
@click.option(
    "--master", default="local[*]", show_default=True, type=Master(), help="The master of Spark."
)
@click.option("--parallelism", type=click.IntRange(min=1), help="The most tasks at once.")
@click.option("--progress", is_flag=True, help="Show a progress bar.")
@AS_JSON
def run(
    directory: Path,
    destination: str,
    vhost: str | None,
    queues: tuple[str, ...],
    pattern: str | None,
    export_id: str | None,
    since: str | None,
    start: str | None,
    end: str | None,
    target_file_size: str,
    codec: str,
    headers: str,
    body: str,
    mode: str,
    allow_data_loss: bool,
    state: bool,
    snapshot: str | None,
    snapshot_directory: Path | None,
    lease: float,
    table_format: str,
    table: str | None,
    master: str,
    parallelism: int | None,
    progress: bool,
    as_json: bool,
) -> None:
    """Export the durable messages in the data directory DIR to DEST.

    DEST is a directory, or a URL such as s3://bucket/folder.

    Run again under its name, an unfinished export goes on, and a finished one is left as it is.
    """
    with _explained():
        from warren.spark_export.export import export as exports
        from warren.spark_export.export.export_options import read_options
        from warren.spark_export.export.export_plan import Wish

        read = read_options(
            headers=headers,
            bodyFormat=body,
            mode=mode,
            failOnDataLoss="false" if allow_data_loss else "true",
            maxPartitionBytes=target_file_size,
            startingTimestamp=start,
            endingTimestamp=end,
        )
        wish = Wish(
            selector=_selector(vhost, queues, pattern),
            options=read,
            since=since,
            codec=codec,
            target_file_bytes=read.max_partition_bytes,
            needs_state=state,
            lease_s=lease,
            snapshot=_snapshot_path(directory, snapshot, snapshot_directory) if snapshot else None,
            snapshot_directory=snapshot_directory,
            table=_table_choice(table_format, table),
        )
        # This comes before Spark is started, which takes seconds.
        check_java()
        with ExitStack() as session:
            manifest = exports.run(
                lambda: session.enter_context(started_spark(master)),
                directory,
                destination,
                export_id or exports.default_export_id(),
                wish,
                parallelism=parallelism,
                tell=ProgressBar() if progress else lambda told: None,
            )
    if progress:
        click.echo(err=True)
    _show_manifest(manifest, as_json)


@export.command()
@DESTINATION
@EXPORT
@click.option("--all", "every", is_flag=True, help="Verify every export in DEST.")
@AS_JSON
def verify(destination: str, export_id: str | None, every: bool, as_json: bool) -> None:
    """Read the files of an export in DEST, and of those it is based on."""
    with _explained():
        from warren.spark_export.export import manifest as manifests

        if every:
            chosen = manifests.list_manifests(destination)
        else:
            newest = manifests.find_manifest(destination, export_id)
            chosen = manifests.chain(destination, newest)
        faults = [fault for one in chosen for fault in manifests.verify(destination, one)]
    files = sum(len(one.files) for one in chosen)
    rows = sum(one.rows for one in chosen)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "exports": [one.export for one in chosen],
                    "files": files,
                    "rows": rows,
                    "faults": [asdict(fault) for fault in faults],
                }
            )
        )
    else:
        for fault in faults:
            click.echo(f"DAMAGED {fault.path} (export {fault.export}): {fault.reason}")
        click.echo(f"{len(chosen)} exports, {files} files, {rows} rows, {len(faults)} damaged")
    sys.exit(DAMAGED if faults else 0)


@export.command("list")
@DESTINATION
@AS_JSON
def list_exports(destination: str, as_json: bool) -> None:
    """List the finished exports in DEST."""
    with _explained():
        from warren.spark_export.export.manifest import list_manifests

        manifests = list_manifests(destination)
    if as_json:
        click.echo(json.dumps([_manifest_summary(one) for one in manifests]))
        return
    for one in manifests:
        since = "" if one.since is None else f" since {one.since}"
        click.echo(
            f"{one.export}{since}: {one.rows} rows in {len(one.files)} files,"
            f" {one.bytes} bytes, of {utc_text(one.snapshot_us)}"
        )


@export.command()
@click.option("--headers", default="map", type=click.Choice(["map", "json", "variant", "none"]))
@click.option("--body", default="binary", type=click.Choice(["binary", "string", "json"]))
@AS_JSON
def schema(headers: str, body: str, as_json: bool) -> None:
    """Print the columns of an export."""
    with _explained():
        from warren.spark_export.decode.schema import columns
        from warren.spark_export.snapshot.options import parse_options

        chosen = columns(parse_options({"headers": headers, "bodyFormat": body}))
    if as_json:
        click.echo(json.dumps([{"name": one.name, "type": one.kind} for one in chosen]))
    else:
        for one in chosen:
            click.echo(f"{one.name} {one.kind}")


# Snapshots


@export.group("snapshot")
def snapshot_group() -> None:
    """Make, list and release snapshots of a store."""


@snapshot_group.command("create")
@DIRECTORY
@choosing_queues
@LEASE
@SNAPSHOTS_IN
@STATE
@AS_JSON
def create_snapshot(
    directory: Path,
    vhost: str | None,
    queues: tuple[str, ...],
    pattern: str | None,
    lease: float,
    snapshot_directory: Path | None,
    state: bool,
    as_json: bool,
) -> None:
    """Make a snapshot of the store in the data directory DIR, and print its id."""
    with _explained():
        from warren.spark_export.snapshot.snapshot import create, tell_unasked

        made = create(
            directory,
            _selector(vhost, queues, pattern),
            lease_s=lease,
            directory=snapshot_directory,
            needs_state=state,
        )
        tell_unasked(made)
    if as_json:
        click.echo(json.dumps(_snapshot_summary(made)))
    else:
        click.echo(made.id)
        if made.copied:
            click.echo(f"no links are possible: {made.log_octets} bytes were copied", err=True)
        if made.damage:
            click.echo(
                f"{made.lost} messages are lost, {made.unreadable_in(made.queues)} places cannot be"
                " read; see `warren store check`",
                err=True,
            )


@snapshot_group.command("list")
@DIRECTORY
@AS_JSON
def list_of_snapshots(directory: Path, as_json: bool) -> None:
    """List the snapshots in the store of the data directory DIR, and the cursors of streams."""
    with _explained():
        from warren.spark_export.snapshot.cursor import find_cursors
        from warren.spark_export.snapshot.snapshot import list_snapshots, pins_directory

        found = list_snapshots(directory)
        cursors = find_cursors(pins_directory(directory))
    if as_json:
        summary = {
            "snapshots": [_snapshot_summary(one) for one in found],
            "cursors": [_cursor_summary(one) for one in cursors],
        }
        click.echo(json.dumps(summary))
        return
    for one in found:
        click.echo(
            f"{one.id}: {one.rows} messages of {len(one.queues)} queues, files of"
            f" {one.log_octets} bytes, {_wanted(one)}"
        )
    for listed in cursors:
        cursor = listed.cursor
        most = "" if cursor.octets_max is None else f" of at most {cursor.octets_max}"
        use = "in use" if listed.in_use else "not in use"
        click.echo(
            f"cursor {cursor.name}: keeps {listed.held.octets} bytes{most} with"
            f" {len(listed.held.snapshots)} snapshots, {use} (since {utc_text(cursor.since_us)})"
        )


@snapshot_group.command("release")
@DIRECTORY
@click.argument("names", metavar="ID|CURSOR", nargs=-1, required=True)
@SNAPSHOTS_IN
def release_snapshot(
    directory: Path, names: tuple[str, ...], snapshot_directory: Path | None
) -> None:
    """Remove snapshots, and cursors with their snapshots; the disk space that only these kept is
    freed."""
    with _explained():
        from warren.persist.snapshots.pins import NAME
        from warren.spark_export.snapshot.snapshot import load_snapshot, pins_directory

        paths = [
            _snapshot_path(directory, name, snapshot_directory)
            for name in names
            if NAME.fullmatch(name)
        ]
        found = [load_snapshot(path) for path in paths]
        for name in names:
            if not NAME.fullmatch(name):
                _end_cursor(snapshot_directory or pins_directory(directory), name)
        for snapshot in found:
            snapshot.release()


@snapshot_group.command("extend")
@DIRECTORY
@click.argument("snapshot", metavar="ID")
@LEASE
@SNAPSHOTS_IN
def extend_snapshot(
    directory: Path, snapshot: str, lease: float, snapshot_directory: Path | None
) -> None:
    """Keep a snapshot for the time in --lease, from now on."""
    with _explained():
        from warren.spark_export.snapshot.snapshot import open_snapshot

        path = _snapshot_path(directory, snapshot, snapshot_directory)
        extended = open_snapshot(path).extend(lease)
        if extended.cursor is not None:
            raise ExportRefused(f"{snapshot} has no lease: it is of cursor {extended.cursor}")
        click.echo(utc_text(extended.expires_us))


# Helpers of the commands


def _selector(vhost: str | None, queues: tuple[str, ...], pattern: str | None) -> QueueSelector:
    from warren.spark_export.snapshot.plan import QueueSelector

    return QueueSelector(vhost, queues or None, pattern)


def _table_choice(table_format: str, name: str | None) -> TableChoice | None:
    from warren.spark_export.export.lake_table import TableChoice

    if table_format != PARQUET:
        return TableChoice(table_format, name)
    if name is not None:
        raise OptionRefused("option --table is for --format iceberg")
    return None


def _snapshot_path(directory: Path, snapshot: str, elsewhere: Path | None) -> Path:
    from warren.spark_export.snapshot.snapshot import snapshot_path

    return snapshot_path(directory, snapshot, elsewhere)


def _end_cursor(pins: Path, name: str) -> None:
    from warren.persist.snapshots.cursors import NAME
    from warren.spark_export.snapshot.cursor import end_cursor

    if not NAME.fullmatch(name):
        raise OptionRefused(f"{name!r} is neither the id of a snapshot nor the name of a cursor")
    if not end_cursor(pins, name):
        raise OptionRefused(f"there is no cursor {name} in {pins}")


def _wanted(snapshot: Snapshot) -> str:
    if snapshot.cursor is not None:
        return f"of cursor {snapshot.cursor}"
    over = " (over)" if snapshot.expires_us <= time.time() * 1e6 else ""
    return f"until {utc_text(snapshot.expires_us)}{over}"


class ProgressBar:
    """A progress bar on the standard error output."""

    def __call__(self, told: ExportProgress) -> None:
        filled = BAR_WIDTH * told.units // max(told.units_total, 1)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        text = f"\r[{bar}] {told.units}/{told.units_total} shares, {told.octets_total} bytes"
        click.echo(text, err=True, nl=False)


def _show_manifest(manifest: Manifest, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_manifest_summary(manifest)))
        return
    for queue in manifest.queues():
        corrupt = f", {queue.corrupt} damaged" if queue.corrupt else ""
        click.echo(f"{queue.vhost} {queue.queue}: {queue.rows} rows{corrupt}, {queue.bytes} bytes")
    click.echo(
        f"export {manifest.export}: {manifest.rows} rows in {len(manifest.files)} files,"
        f" {manifest.bytes} bytes"
    )
    if manifest.unreadable:
        click.echo(
            f"{manifest.unreadable} places of the store cannot be read, and messages that were"
            " there are not in the export; see `warren store check`",
            err=True,
        )


def _manifest_summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "export": manifest.export,
        "since": manifest.since,
        "node_id": manifest.node_id,
        "snapshot": manifest.snapshot,
        "snapshot_us": manifest.snapshot_us,
        "finished_us": manifest.finished_us,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "corrupt": manifest.corrupt,
        "unreadable": manifest.unreadable,
        "files": len(manifest.files),
        "queues": [asdict(queue) for queue in manifest.queues()],
    }


def _snapshot_summary(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "id": snapshot.id,
        "directory": str(snapshot.directory),
        "node_id": snapshot.node_id,
        "created_us": snapshot.created_us,
        "expires_us": None if snapshot.cursor is not None else snapshot.expires_us,
        "cursor": snapshot.cursor,
        "messages": snapshot.rows,
        "record_bytes": snapshot.octets,
        "file_bytes": snapshot.log_octets,
        "copied": snapshot.copied,
        "lost": snapshot.lost,
        "unreadable": snapshot.unreadable_in(snapshot.queues),
        "queues": [
            {"vhost": queue.vhost, "name": queue.name, "messages": queue.rows}
            for queue in snapshot.queues
        ],
    }


def _cursor_summary(listed: ListedCursor) -> dict[str, Any]:
    return {
        "name": listed.cursor.name,
        "kept_bytes": listed.held.octets,
        "max_bytes": listed.cursor.octets_max,
        "snapshots": listed.held.snapshots,
        "in_use": listed.in_use,
        "since_us": listed.cursor.since_us,
    }
