"""Delta tables, through the library `deltalake`.

Delta has application transactions (`txn` in the protocol): an application id and a version, kept in
the table's log and its checkpoints. The id is the job's, the version is the batch's number; each
claim is an application, too. If two writers commit a version of one application at once, Delta
refuses one of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import deltalake
import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from warren.backup.shelves import is_url
from warren.spark_export.errors import TableRefused
from warren.spark_export.export.lake_table import DAY, TableBatch, TableFile
from warren.spark_export.export.manifest import Where

PARTITION_BY = ["vhost", "queue", DAY]

S3_SCHEMES = ("s3", "s3a", "s3n")

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RUST_CALLS = "\n   0: "


class DeltaLakeTable:
    """The Delta table in a directory or at a URL."""

    def __init__(self, place: Where) -> None:
        self._uri, self._storage = address(str(place))

    def check(self, schema: pa.Schema) -> None:
        table = self._find()
        if table is None:
            return
        if table.metadata().partition_columns != PARTITION_BY:
            raise TableRefused(
                f"{self._uri} is partitioned by {table.metadata().partition_columns}, not by"
                f" {PARTITION_BY}"
            )
        known = {field.name: field.type for field in table.schema().fields}
        for field in deltalake.Schema.from_arrow(_with_day(schema)).fields:
            if known.get(field.name) != field.type:
                raise TableRefused(
                    f"column {field.name} is {field.type}; the table {self._uri} has"
                    f" {known.get(field.name, 'no such column')}"
                )

    def has(self, batch: TableBatch) -> bool:
        table = self._find()
        return table is not None and batch.is_in(table.transaction_version)

    def append(self, batch: TableBatch, files: Sequence[TableFile], schema: pa.Schema) -> None:
        columns = _with_day(schema)
        with self._explained():
            table = self._find() or deltalake.DeltaTable.create(
                self._uri,
                columns,
                mode="ignore",
                partition_by=PARTITION_BY,
                storage_options=self._storage,
            )
            if batch.is_in(table.transaction_version) or not (files or batch.claims):
                return
            names = (batch.job, *(claim.name for claim in batch.claims))
            try:
                # In the version that was checked: if another one with a note of these names has
                # come since, Delta refuses the transaction.
                table.create_write_transaction(
                    [_addition(file) for file in files],
                    mode="append",
                    schema=columns,
                    partition_by=PARTITION_BY,
                    commit_properties=deltalake.CommitProperties(
                        app_transactions=[
                            deltalake.Transaction(name, batch.number) for name in names
                        ]
                    ),
                )
            except CommitFailedError:
                # The other one may have appended this very batch.
                if not self.has(batch):
                    raise

    def _find(self) -> deltalake.DeltaTable | None:
        with self._explained():
            try:
                return deltalake.DeltaTable(self._uri, storage_options=self._storage)
            except TableNotFoundError:
                return None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise TableRefused(f"Delta table {self._uri}: {_in_a_line(error)}") from error


def _in_a_line(error: Exception) -> str:
    """The text of an error of Delta's, without its lines, colours and list of Rust's calls."""
    text = str(error).partition(RUST_CALLS)[0]
    return " ".join(COLOUR.sub("", text).split())


def _with_day(schema: pa.Schema) -> pa.Schema:
    """The columns of the table: the day is in its log, for each file, but not in the files."""
    return schema.append(pa.field(DAY, pa.date32()))


def _addition(file: TableFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={"vhost": file.vhost, "queue": file.queue, DAY: file.date},
        modification_time=int(datetime.now(UTC).timestamp() * 1000),
        data_change=True,
        stats=json.dumps(_statistics(file)),
    )


def _statistics(file: TableFile) -> dict[str, Any]:
    """The statistics by which readers skip a file."""
    least: dict[str, Any] = {"seq": file.first_seq}
    most: dict[str, Any] = {"seq": file.last_seq}
    if file.min_enqueued_us is not None and file.max_enqueued_us is not None:
        # Delta keeps milliseconds, so a maximum must be rounded up.
        least["enqueued_at"] = _instant(file.min_enqueued_us // 1000)
        most["enqueued_at"] = _instant(-(-file.max_enqueued_us // 1000))
    return {"numRecords": file.rows, "minValues": least, "maxValues": most}


def _instant(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z"


def address(place: str) -> tuple[str, dict[str, str]]:
    """The place for deltalake: the query of a URL and its login become options. Other options are
    read from the environment. Raises `ShelfRefused`."""
    if not is_url(place):
        return str(Path(os.path.abspath(place))), {}
    parts = urlsplit(place)
    options: dict[str, str] = {}
    if parts.scheme in S3_SCHEMES:
        given = dict(parse_qsl(parts.query))
        if "region" in given:
            options["AWS_REGION"] = given["region"]
        if "endpoint_override" in given:
            scheme = given.get("scheme", "https")
            options["AWS_ENDPOINT_URL"] = f"{scheme}://{given['endpoint_override']}"
            options["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
        if parts.username and parts.password:
            options["AWS_ACCESS_KEY_ID"] = unquote(parts.username)
            options["AWS_SECRET_ACCESS_KEY"] = unquote(parts.password)
    host = parts.netloc.rpartition("@")[2] if parts.scheme in S3_SCHEMES else parts.netloc
    return f"{parts.scheme}://{host}{parts.path}", options
