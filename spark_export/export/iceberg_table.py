"""Iceberg tables, through the library `pyiceberg`, in any catalog that it is configured for.

A snapshot of a table has a summary, in which a writer may keep notes: here the job, the number of
its batch, and its claims. A batch is known as long as its snapshot exists; in addition, files that
are in the table already are refused.

A transaction is committed on top of the snapshots that were checked, or not at all: the catalog
refuses it when another one came first. pyiceberg would then commit it on top of that one without
checking. So its own retries are off here, and `append` checks again.

A catalog may refuse a transaction that it has accepted a moment before: when the answer is lost,
the catalog's client may send the request again. pyiceberg removes the manifests of a refused
transaction; if that one counts, the table would be unreadable. So manifests stay here. Those of a
transaction that does not count are orphan files, which a table's maintenance removes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import DayTransform, IdentityTransform

from warren.backup.shelves import is_url
from warren.spark_export.errors import SparkExportError, TableRefused
from warren.spark_export.export.lake_table import (
    DAY,
    PARTITION_SOURCES,
    TableBatch,
    TableChoice,
    TableFile,
)
from warren.spark_export.export.manifest import Where

JOB = "warren.job"
BATCH = "warren.batch"
CLAIMS = "warren.claims"
"""The keys in the summary of a snapshot. Claims are a list of names, as JSON."""

COMMITS_MAX = 20
"""Tries to append a batch. Each one that fails is another writer's success."""

MEASURED = (*PARTITION_SOURCES, "seq")
"""Columns for which the table keeps the smallest and largest values; the partitions follow from
them."""

PROPERTIES = {
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "truncate(16)" for name in MEASURED},
}


def find_table(choice: TableChoice, place: Where) -> IcebergTable:
    """The table of this name, in its catalog. Raises `TableRefused`."""
    assert choice.name is not None
    catalog, _, name = choice.name.partition(".")
    with _explained(choice.name):
        return IcebergTable(load_catalog(catalog), name, _location(str(place)))


class IcebergTable:
    """A table of a catalog. Its files are at `location`, where it is made if it is missing; an
    existing table may be elsewhere."""

    def __init__(self, catalog: Catalog, name: str, location: str) -> None:
        self._catalog = catalog
        self._name = name
        self._location = location

    def check(self, schema: pa.Schema) -> None:
        with _explained(self._name):
            table = self._find()
            if table is None:
                return
            spec = [
                (table.schema().find_field(field.source_id).name, type(field.transform))
                for field in table.spec().fields
            ]
            wanted = [
                ("vhost", IdentityTransform),
                ("queue", IdentityTransform),
                ("enqueued_at", DayTransform),
            ]
            if spec != wanted:
                raise TableRefused(
                    f"Iceberg table {self._name} is not partitioned by vhost, queue and"
                    f" day(enqueued_at): {table.spec()}"
                )
            known = table.schema().as_arrow()
            for field in schema:
                at = known.get_field_index(field.name)
                if at < 0 or not _same(field.type, known.field(at).type):
                    found = "no such column" if at < 0 else known.field(at).type
                    raise TableRefused(
                        f"column {field.name} is {field.type}; Iceberg table {self._name} has"
                        f" {found}"
                    )

    def has(self, batch: TableBatch) -> bool:
        with _explained(self._name):
            table = self._find()
        return table is not None and batch.is_in(_notes(table).get)

    def append(self, batch: TableBatch, files: Sequence[TableFile], schema: pa.Schema) -> None:
        with _explained(self._name):
            for _ in range(COMMITS_MAX - 1):
                with suppress(CommitFailedException, TableAlreadyExistsError):
                    return self._try_append(batch, files, schema)
            return self._try_append(batch, files, schema)

    def _try_append(self, batch: TableBatch, files: Sequence[TableFile], schema: pa.Schema) -> None:
        """Append the batch to the table as it is now. Raises `CommitFailedException` if another
        transaction comes first."""
        table = self._find() or self._create(schema)
        if batch.is_in(_notes(table).get) or not (files or batch.claims):
            return
        notes = {JOB: batch.job, BATCH: str(batch.number)}
        if batch.claims:
            notes[CLAIMS] = json.dumps([claim.name for claim in batch.claims])
        properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        _keep_manifests(table.io)
        with table.transaction() as transaction:
            paths = [f"{self._location}/{file.path}" for file in files]
            transaction.add_files(paths, snapshot_properties=notes)

    def _find(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _create(self, schema: pa.Schema) -> Table:
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        made = self._catalog.create_table_transaction(
            self._name, schema, location=self._location, properties=PROPERTIES
        )
        with made as transaction, transaction.update_spec() as spec:
            spec.add_identity("vhost")
            spec.add_identity("queue")
            spec.add_field("enqueued_at", DayTransform(), DAY)
        return self._catalog.load_table(self._name)


def _keep_manifests(files: FileIO) -> None:
    """Keep pyiceberg from deleting manifests and lists of manifests; it may delete other files."""
    delete = files.delete

    def delete_others(location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        if not path.endswith(".avro"):
            delete(location)

    files.delete = delete_others  # type: ignore[method-assign]


def _notes(table: Table) -> dict[str, int]:
    """The last number that is noted in the table, by the name of its job or claim."""
    notes: dict[str, int] = {}
    for snapshot in table.metadata.snapshots:
        summary = snapshot.summary
        number = None if summary is None else summary.get(BATCH)
        if summary is not None and number is not None:
            for name in (summary.get(JOB), *json.loads(summary.get(CLAIMS) or "[]")):
                if name is not None:
                    notes[name] = max(notes.get(name, 0), int(number))
    return notes


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn errors into `TableRefused`; a catalog may raise any error of its own library."""
    try:
        yield
    except SparkExportError:
        raise
    except Exception as error:
        raise TableRefused(f"Iceberg table {name}: {error}") from error


def _same(kind: pa.DataType, known: pa.DataType) -> bool:
    """Whether a column of type `kind` fits one of type `known`: Iceberg has no 16-bit integers, and
    Arrow has several types of text."""
    if pa.types.is_integer(kind) and pa.types.is_integer(known):
        return bool(kind.bit_width <= known.bit_width)
    if pa.types.is_map(kind) and pa.types.is_map(known):
        return _same(kind.key_type, known.key_type) and _same(kind.item_type, known.item_type)
    texts, octets = (
        (pa.types.is_string, pa.types.is_large_string),
        (
            pa.types.is_binary,
            pa.types.is_large_binary,
        ),
    )
    for family in (texts, octets):
        if any(one(kind) for one in family):
            return any(one(known) for one in family)
    return bool(kind == known)


def _location(place: str) -> str:
    """The place for Iceberg, without a URL's query: such options are the catalog's."""
    if not is_url(place):
        return f"file://{os.path.abspath(place)}"
    parts = urlsplit(place)
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    host = parts.netloc.rpartition("@")[2] if scheme == "s3" else parts.netloc
    return f"{scheme}://{host}{parts.path}".rstrip("/")
