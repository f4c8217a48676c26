"""The plan of an export: the wishes for it, the snapshot it reads, and the export it goes on from.

The plan is in a file in the staging folder while the export is not finished, so that an export that
was killed can go on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from warren.backup.shelf import Shelf
from warren.spark_export.errors import OptionRefused, SnapshotGone, StoreRefused
from warren.spark_export.export.lake_table import TableChoice
from warren.spark_export.export.manifest import staging_folder
from warren.spark_export.export.spark_job import TARGET_FILE_BYTES
from warren.spark_export.snapshot.options import BodyFormat, Headers, Mode, ReadOptions
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import LEASE_S, Snapshot, open_snapshot

FORMAT = 1

PLAN_FILE = "plan.json"

LATEST = "latest"

OPTIONS = (
    "headers",
    "body_format",
    "mode",
    "fail_on_data_loss",
    "starting_timestamp_us",
    "ending_timestamp_us",
)
"""The fields of `ReadOptions` that an export can have."""


@dataclass(frozen=True)
class Wish:
    """The wishes for an export. `since` is another export, or `latest`.

    `target_file_bytes` is the size of a file in octets of uncompressed records. `table` is the
    table that the files are appended to, if any.
    """

    selector: QueueSelector
    options: ReadOptions
    since: str | None = None
    codec: str = "zstd"
    target_file_bytes: int = TARGET_FILE_BYTES
    needs_state: bool = False
    lease_s: float = LEASE_S
    snapshot: Path | None = None
    snapshot_directory: Path | None = None
    table: TableChoice | None = None


@dataclass(frozen=True)
class ExportPlan:
    """The fixed plan of an export that has begun."""

    export: str
    snapshot: Snapshot
    owns_snapshot: bool
    since: str | None
    options: ReadOptions
    codec: str
    target_file_bytes: int
    selector: QueueSelector
    table: TableChoice | None


def plan_fields(plan: ExportPlan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "snapshot": str(plan.snapshot.directory.absolute()),
        "owns_snapshot": plan.owns_snapshot,
        **options_fields(plan),
        "since": plan.since,
    }


def options_fields(plan: ExportPlan) -> dict[str, Any]:
    options = {name: getattr(plan.options, name) for name in OPTIONS}
    return {
        "selector": asdict(plan.selector),
        "read": options,
        "codec": plan.codec,
        "target_file_bytes": plan.target_file_bytes,
        "table": None if plan.table is None else asdict(plan.table),
    }


def options_from(read: dict[str, Any]) -> ReadOptions:
    """The options in a plan or a manifest. Raises KeyError, ValueError."""
    return ReadOptions(
        headers=Headers(read["headers"]),
        body_format=BodyFormat(read["body_format"]),
        mode=Mode(read["mode"]),
        fail_on_data_loss=read["fail_on_data_loss"],
        starting_timestamp_us=read["starting_timestamp_us"],
        ending_timestamp_us=read["ending_timestamp_us"],
    )


def read_plan(shelf: Shelf, export: str, wish: Wish) -> ExportPlan:
    """The plan of an unfinished export. Raises `OptionRefused`, `SnapshotGone`, `StoreRefused`."""
    staging = f"{shelf.shown}/{staging_folder(export)}"
    path = f"{staging}/{PLAN_FILE}"
    try:
        fields = json.loads(shelf.read(f"{staging_folder(export)}/{PLAN_FILE}").decode("utf-8"))
        selector, read = fields["selector"], fields["read"]
        if fields["format"] > FORMAT:
            raise StoreRefused(f"{path} is of a later version")
        names = selector["names"]
        table = fields.get("table")
        directory = Path(fields["snapshot"])
        known = ExportPlan(
            export,
            _open(directory, staging),
            fields["owns_snapshot"],
            fields["since"],
            options_from(read),
            fields["codec"],
            fields["target_file_bytes"],
            QueueSelector(
                selector["vhost"], None if names is None else tuple(names), selector["pattern"]
            ),
            None if table is None else TableChoice(**table),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreRefused(f"{path} cannot be read: {error!r}") from None
    wanted = replace(
        known,
        options=wish.options,
        codec=wish.codec,
        target_file_bytes=wish.target_file_bytes,
        selector=wish.selector,
        table=wish.table,
        # The export that was the latest then stays the base, whatever has been finished meanwhile.
        since=known.since if known.since and wish.since == LATEST else wish.since,
    )
    if plan_fields(known) != plan_fields(wanted):
        raise OptionRefused(
            f"export {export} was begun with other options; use those, or another name"
        )
    return known


def _open(directory: Path, staging: str) -> Snapshot:
    try:
        return open_snapshot(directory)
    except SnapshotGone as gone:
        raise SnapshotGone(
            f"{gone}. The export it belonged to cannot be finished: remove {staging}, or begin"
            " another one"
        ) from None
