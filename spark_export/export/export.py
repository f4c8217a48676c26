"""An export: a snapshot, its units written by Spark's tasks, and a manifest that makes it count.

The plan of an export is written down before anything else. If an export of the same name is begun
again, it continues with that plan and that snapshot, and units already written are not written
again. A finished export is left as it is.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warren.backup.shelves import is_url
from warren.spark_export.decode.schema import arrow_schema, columns, spark_schema
from warren.spark_export.errors import (
    BatchRefused,
    ExportRunning,
    OptionRefused,
    SnapshotGone,
    StoreRefused,
)
from warren.spark_export.export.export_plan import (
    LATEST,
    PLAN_FILE,
    ExportPlan,
    Wish,
    options_fields,
    options_from,
    plan_fields,
    read_plan,
)
from warren.spark_export.export.lake_table import (
    Claim,
    TableBatch,
    TableChoice,
    TableFile,
    check_columns,
)
from warren.spark_export.export.lake_tables import open_table
from warren.spark_export.export.manifest import (
    EXPORT_ID,
    STAGING_DIRECTORY,
    SUCCESS_FILE,
    ExportedFile,
    Manifest,
    Where,
    check_export_id,
    find_manifest,
    list_manifests,
    lock_name,
    manifest_name,
    next_number,
    read_manifest,
    shelf_of,
    staging_folder,
    write_manifest,
)
from warren.spark_export.export.parquet import ExportTask
from warren.spark_export.export.spark_job import ExportProgress, write_tasks
from warren.spark_export.snapshot.filters import Interval
from warren.spark_export.snapshot.plan import (
    plan_units,
    select_queues,
)
from warren.spark_export.snapshot.snapshot import (
    PinnedQueue,
    Snapshot,
    create,
    load_snapshot,
    open_snapshot,
    tell_unasked,
)
from warren.spark_export.snapshot.unreadable import check_unreadable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READY_FILE = "manifest.json"
"""In the staging folder, under the snapshot's id: the manifest of an export whose files are about
to be appended to a table. With it the export can be finished without its snapshot."""

ONLY_BATCH = 0
"""The only batch of an export, which is one transaction of a table."""


def batch_of(manifest: Manifest) -> TableBatch:
    """The export as the only batch of a job.

    The batch claims the export's name, since another process may write an export of this name from
    a snapshot of its own. It also claims to be the one export that goes on from its base.
    """
    node = f"warren-export/{manifest.node_id}"
    claims = [
        Claim(
            f"{node}/{manifest.export}",
            f"export {manifest.export} is in the table: another process wrote it, from another"
            f" snapshot; go on from it with --since {LATEST}",
        )
    ]
    if manifest.since is not None:
        refusal = _went_on("another export", manifest.since)
        claims.append(Claim(f"{node}/{manifest.since}/next", refusal))
    return TableBatch(f"{node}/{manifest.export}/{manifest.snapshot}", ONLY_BATCH, tuple(claims))


def _went_on(export: str, base: str) -> str:
    return (
        f"{export} went on from {base}, and its messages are in the table; go on from that one"
        f" (--since {LATEST})"
    )


def default_export_id() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def begin(
    data_directory: Path, destination: Where, export: str, wish: Wish
) -> ExportPlan | Manifest:
    """The plan of the export, new or an earlier one; or its manifest if it is finished.

    Raises `OptionRefused`, `QueueUnknown`, `RecordDamaged`, `SnapshotGone`, `StoreRefused`,
    `TableRefused`, OSError.
    """
    check_export_id(export)
    check_destination(data_directory, destination)
    shelf = shelf_of(destination)
    if shelf.size(manifest_name(export)) is not None:
        # The process that wrote the manifest may have been killed right after.
        manifest = read_manifest(destination, export)
        settle(destination, manifest)
        return manifest
    ready = _ready(destination, export)
    if ready:
        return _append_one(destination, ready)
    name = f"{staging_folder(export)}/{PLAN_FILE}"
    if shelf.size(name) is not None:
        plan = read_plan(shelf, export, wish)
        _check_last(destination, plan)
        return plan
    if wish.table is not None:
        schema = arrow_schema(columns(wish.options))
        check_columns(schema)
        open_table(wish.table, destination).check(schema)
        _finish_others(destination, wish)
    base = None
    if wish.since is not None:
        base = find_manifest(destination, None if wish.since == LATEST else wish.since)
        _check_base(base, wish)
        _check_same_table(base, wish)
    snapshot = _snapshot(data_directory, wish)
    try:
        if base is not None:
            _check_same_node(base, snapshot)
        plan = ExportPlan(
            export,
            snapshot,
            wish.snapshot is None,
            None if base is None else base.export,
            wish.options,
            wish.codec,
            wish.target_file_bytes,
            wish.selector,
            wish.table,
        )
        _check_last(destination, plan)
        check_unreadable(snapshot, _queues(plan), wish.options.mode)
        shelf.write(name, json.dumps(plan_fields(plan)).encode())
    except BaseException:
        # Keep the snapshot if the plan may be there: the answer to its write may have been lost.
        with suppress(OSError):
            if wish.snapshot is None and shelf.size(name) is None:
                snapshot.release()
        raise
    return plan


def tasks(destination: Where, plan: ExportPlan) -> list[ExportTask]:
    """The tasks of a plan, the same at each call. Raises `StoreRefused`, OSError."""
    seen = {} if plan.since is None else read_manifest(destination, plan.since).high_water
    spans = [(at, Interval(seen.get(f"{at.queue_id:016x}"))) for at in _queues(plan)]
    units = plan_units(plan.snapshot, spans, max_bytes=plan.target_file_bytes, min_units=1)
    known = {queue.queue_id: queue.deliveries for queue in plan.snapshot.queues}
    return [
        ExportTask(
            unit,
            known[unit.queue_id],
            plan.options,
            absolute(destination),
            plan.export,
            plan.snapshot.node_id,
            plan.snapshot.id,
            plan.codec,
        )
        for unit in units
    ]


def finish(
    destination: Where, plan: ExportPlan, files: Iterable[ExportedFile], schema: dict[str, Any]
) -> Manifest:
    """Append the files to the table, if there is one, write the manifest, and clean up.

    The manifest comes last. If this process is killed before it, the next export to the table
    finishes this one first, whatever its name. Raises `OptionRefused`, `TableRefused`, OSError.
    """
    files = sorted(files, key=lambda file: file.path)
    base = {} if plan.since is None else read_manifest(destination, plan.since).high_water
    manifest = Manifest(
        export=plan.export,
        since=plan.since,
        node_id=plan.snapshot.node_id,
        snapshot=plan.snapshot.id,
        snapshot_us=plan.snapshot.created_us,
        finished_us=int(time.time() * 1e6),
        options=options_fields(plan),
        schema=schema,
        unreadable=plan.snapshot.unreadable_in(_queues(plan)),
        files=tuple(files),
        high_water=_high_water(base, _queues(plan)),
        number=next_number(destination),
    )
    if plan.table is None:
        return _settled(destination, manifest)
    _check_last(destination, plan)
    write_manifest(destination, manifest, _ready_name(manifest))
    return _append(destination, manifest)


def _append(destination: Where, manifest: Manifest) -> Manifest:
    """Append the files of an export to its table, unless they are there, and finish the export.

    Raises `BatchRefused` if another export excludes this one, `TableRefused`, OSError.
    """
    table = TableChoice(**manifest.options["table"])
    schema = arrow_schema(columns(options_from(manifest.options["read"])))
    files = [TableFile.of(file) for file in manifest.files]
    try:
        open_table(table, destination).append(batch_of(manifest), files, schema)
    except BatchRefused:
        # Its files will never be in the table.
        shelf_of(destination).remove(_ready_name(manifest))
        raise
    return _settled(destination, manifest)


def _append_one(destination: Where, ready: list[Manifest]) -> Manifest:
    """Append one of these exports, which several processes wrote under one name. Raises what
    `_append` does."""
    for manifest in ready[:-1]:
        with suppress(BatchRefused):
            return _append(destination, manifest)
    return _append(destination, ready[-1])


def _settled(destination: Where, manifest: Manifest) -> Manifest:
    """Write the manifest, and clean up. Raises `ExportRunning` if there is another one of this
    name, OSError."""
    if shelf_of(destination).size(manifest_name(manifest.export)) is None:
        write_manifest(destination, manifest)
    elif read_manifest(destination, manifest.export).snapshot != manifest.snapshot:
        raise ExportRunning(
            f"another process wrote export {manifest.export} to {shelf_of(destination).shown}"
            f" meanwhile; go on from it with --since {LATEST}"
        )
    settle(destination, manifest)
    return manifest


def settle(destination: Where, manifest: Manifest) -> None:
    """Mark that there is a finished export, and remove what only an unfinished one needs.

    Does nothing if this was done before. Raises OSError.
    """
    shelf = shelf_of(destination)
    staging = staging_folder(manifest.export)
    try:
        plan = json.loads(shelf.read(f"{staging}/{PLAN_FILE}"))
    except FileNotFoundError:
        return
    shelf.write(SUCCESS_FILE, b"")
    snapshot = Path(plan["snapshot"])
    # The plan may be that of another process, which wrote an export of this name.
    if plan["owns_snapshot"] and snapshot.name == manifest.snapshot:
        with suppress(SnapshotGone, StoreRefused):
            load_snapshot(snapshot).release()
    shelf.remove_folder(staging)


def absolute(destination: Where) -> str:
    """The destination as an absolute path or URL, for processes with another working directory.

    Raises `ShelfRefused`.
    """
    return str(destination) if is_url(destination) else str(Path(destination).absolute())


def run(
    start: Callable[[], SparkSession],
    data_directory: Path,
    destination: Where,
    export: str,
    wish: Wish,
    *,
    parallelism: int | None = None,
    tell: Callable[[ExportProgress], None] = lambda progress: None,
) -> Manifest:
    """Run an export. `tell` gets its progress. Spark is started when everything else is in order.

    The snapshot is kept while this runs; that of a failed export is kept until its lease runs out,
    for the next try. Raises what `begin` and `export_unit` raise, as far as Spark lets it through.
    """
    check_export_id(export)
    check_destination(data_directory, destination)
    with alone(destination, export):
        plan = begin(data_directory, destination, export, wish)
        if isinstance(plan, Manifest):
            return plan
        work = tasks(destination, plan)
        schema = spark_schema(columns(plan.options)).jsonValue()
        renewal = Renewal(plan.snapshot, wish.lease_s) if plan.owns_snapshot else None

        def look(progress: ExportProgress) -> None:
            if renewal is not None:
                renewal.look(time.monotonic())
            tell(progress)

        files = write_tasks(start(), work, parallelism, look) if work else []
        return finish(destination, plan, files, schema)


class Renewal:
    """Keeps a snapshot as long as `look` is called; without these calls its lease runs out."""

    def __init__(self, snapshot: Snapshot, lease_s: float) -> None:
        self._snapshot = snapshot
        self._lease_s = lease_s
        self._due = 0.0

    def look(self, now: float) -> None:
        """Renew the lease when a third of it is over. Raises `SnapshotGone`, OSError."""
        if now >= self._due:
            self._snapshot.extend(self._lease_s)
            self._due = now + self._lease_s / 3


@contextmanager
def alone(destination: Where, export: str) -> Iterator[None]:
    """Exclude other processes from writing this export, if it is in a directory of this machine; at
    a URL nothing excludes them. Raises `ExportRunning` if another process writes it, OSError."""
    directory = shelf_of(destination).local
    if directory is None:
        yield
        return
    path = directory / lock_name(export)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(os.fstat(fd), os.stat(path))
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise ExportRunning(
                f"export {export} is being written to {destination} by another process;"
                " wait for it, or use another name"
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(fd)


# Snapshots and plans


def check_destination(data_directory: Path, destination: Where) -> None:
    """Raise `OptionRefused` for a place in the data directory, `ShelfRefused` if unusable."""
    if shelf_of(destination).is_inside(data_directory):
        raise OptionRefused(
            f"{destination} is in the data directory {data_directory}, which is the node's alone"
        )


def _snapshot(data_directory: Path, wish: Wish) -> Snapshot:
    if wish.snapshot is not None:
        return open_snapshot(wish.snapshot)
    snapshot = create(
        data_directory,
        wish.selector,
        lease_s=wish.lease_s,
        directory=wish.snapshot_directory,
        needs_state=wish.needs_state,
    )
    tell_unasked(snapshot)
    return snapshot


def _check_base(base: Manifest, wish: Wish) -> None:
    """Refuse times together with a base: positions tell what is new, and messages outside the times
    would never be exported."""
    if any(wish_us is not None for wish_us in _times(asdict(wish.options))):
        raise OptionRefused("since and a time exclude each other")
    if any(base_us is not None for base_us in _times(base.options["read"])):
        raise OptionRefused(f"export {base.export} is of a certain time; nothing can go on with it")


def _check_same_table(base: Manifest, wish: Wish) -> None:
    """Refuse a base with another table: its messages would never come into this table."""
    wanted = None if wish.table is None else asdict(wish.table)
    if base.options.get("table") != wanted:
        raise OptionRefused(
            f"export {base.export} was written to {_table_text(base.options.get('table'))}, this"
            f" one is for {_table_text(wanted)}: export in full, to another place"
        )


def _check_last(destination: Where, plan: ExportPlan) -> None:
    """Refuse a base that another export to the table went on from: messages would come twice.

    The table refuses that too, but after all files are written. Raises `OptionRefused`,
    `StoreRefused`, OSError.
    """
    if plan.table is None or plan.since is None:
        return
    for manifest in (*list_manifests(destination), *_ready(destination)):
        if manifest.since == plan.since and manifest.options.get("table") is not None:
            raise OptionRefused(_went_on(f"export {manifest.export}", plan.since))


def _ready_name(manifest: Manifest) -> str:
    return f"{staging_folder(manifest.export)}/{manifest.snapshot}/{READY_FILE}"


def _ready(destination: Where, export: str | None = None) -> list[Manifest]:
    """The unfinished exports, or those of this name, whose files may be in their table already."""
    wanted = EXPORT_ID.pattern if export is None else re.escape(export)
    pattern = re.compile(rf"{STAGING_DIRECTORY}/({wanted})/[^/]+/{re.escape(READY_FILE)}")
    names = map(pattern.fullmatch, shelf_of(destination).names(STAGING_DIRECTORY))
    return [read_manifest(destination, name[1], name[0]) for name in names if name is not None]


def _finish_others(destination: Where, wish: Wish) -> None:
    """Finish the exports that were killed around their transaction: their messages may be in the
    table, and must not come again.

    Raises `OptionRefused`, `StoreRefused`, `TableRefused`, OSError.
    """
    for other in _ready(destination):
        with suppress(ExportRunning, BatchRefused), alone(destination, other.export):
            _append(destination, other)
            if wish.since is None:
                raise OptionRefused(
                    f"export {other.export} was not finished and is now: its messages are in the"
                    f" table; go on from it with --since {LATEST}"
                )


def _table_text(table: dict[str, Any] | None) -> str:
    return "plain files" if table is None else " ".join(filter(None, table.values()))


def _times(read: dict[str, Any]) -> tuple[Any, Any]:
    return read["starting_timestamp_us"], read["ending_timestamp_us"]


def _check_same_node(base: Manifest, snapshot: Snapshot) -> None:
    if base.node_id != snapshot.node_id:
        raise StoreRefused(
            f"export {base.export} is of node {base.node_id}, not of {snapshot.node_id}:"
            " positions of one say nothing about the other; export in full, to another place"
        )


def _queues(plan: ExportPlan) -> list[PinnedQueue]:
    return select_queues(plan.snapshot, plan.selector, taken_for_it=plan.owns_snapshot)


def _high_water(base: dict[str, int], queues: list[PinnedQueue]) -> dict[str, int]:
    """The high water of queues. It is never below that of the base: a snapshot that was given may
    be older than the base's."""
    reached = dict(base)
    for queue in queues:
        if queue.last_position is not None:
            key = f"{queue.queue_id:016x}"
            reached[key] = max(reached.get(key, 0), queue.last_position + 1)
    return reached
