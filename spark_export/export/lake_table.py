"""Tables of a lakehouse, Delta or Iceberg, to which exports and batches of streams are appended.

The rows are written first, as Parquet files in the place of the table, which does not know of them
yet. Then one transaction of the table makes them count, and notes in the table which *batch* of
which *job* they are. A writer that is killed before the transaction writes again; one that is
killed after it finds the note (`LakeTable.has`) and appends nothing. So each batch is in the table
exactly once.

An export is a job with one batch, a streaming query a job with many. Two exports may exclude each
other: both are of one name, or both go on from the same export. Each *claims* a name that only one
of them can have; the transaction notes the claims, too, and of two that were checked at the same
moment one fails.

A table is partitioned by virtual host, queue and the day (UTC) on which messages were enqueued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from warren.spark_export.errors import BatchRefused, OptionRefused

if TYPE_CHECKING:
    import pyarrow as pa

    from warren.spark_export.export.manifest import ExportedFile

DELTA = "delta"
ICEBERG = "iceberg"

PARTITION_SOURCES = ("vhost", "queue", "enqueued_at")
"""Columns that every row of a table must have."""

DAY = "date"
"""The partition by day: a column of a Delta table, a hidden one of an Iceberg table."""


@dataclass(frozen=True)
class TableChoice:
    """The kind of a table, and its name in a catalog, which Iceberg tables have and Delta tables
    lack."""

    format: str
    name: str | None = None

    def __post_init__(self) -> None:
        if self.format == ICEBERG and (self.name or "").count(".") < 2:
            raise OptionRefused(
                "an Iceberg table needs a name of catalog, namespace and table, such as"
                f" lake.messages.orders; not {self.name!r}"
            )
        if self.format == DELTA and self.name is not None:
            raise OptionRefused("a Delta table has no name: it is what stands in its directory")


@dataclass(frozen=True)
class TableFile:
    """A complete Parquet file; `path` is relative to the table. `first_seq`, `last_seq` and the
    times are the smallest and the largest in it, times in microseconds since 1970."""

    path: str
    vhost: str
    queue: str
    date: str | None
    rows: int
    bytes: int
    first_seq: int
    last_seq: int
    min_enqueued_us: int | None
    max_enqueued_us: int | None

    @classmethod
    def of(cls, file: ExportedFile) -> TableFile:
        return cls(**{name: getattr(file, name) for name in cls.__dataclass_fields__})


class Claim(NamedTuple):
    """A name that one batch of a table can have; `refusal` tells the next one why it may not."""

    name: str
    refusal: str


@dataclass(frozen=True)
class TableBatch:
    """A batch of a job, with its claims."""

    job: str
    number: int
    claims: tuple[Claim, ...] = ()

    def is_in(self, last: Callable[[str], int | None]) -> bool:
        """Whether a table has this batch, or a later one. `last` tells the last number noted in it
        under the name of a job or a claim.

        Raises `BatchRefused` if it has not, and another batch has one of the claims.
        """
        number = last(self.job)
        if number is not None and number >= self.number:
            return True
        for claim in self.claims:
            if last(claim.name) is not None:
                raise BatchRefused(claim.refusal)
        return False


class LakeTable(Protocol):
    """A table that exists, or is made by the first `append`. Methods raise `TableRefused`."""

    def check(self, schema: pa.Schema) -> None:
        """Raise `TableRefused` if the table exists and its columns differ from these."""

    def has(self, batch: TableBatch) -> bool:
        """Whether this batch of the job, or a later one, is in the table. Raises `BatchRefused` if
        it is not, and another batch has one of its claims."""

    def append(self, batch: TableBatch, files: Sequence[TableFile], schema: pa.Schema) -> None:
        """Append the files to the table, in one transaction that notes the batch and its claims;
        nothing if the table has the batch. Without files and claims the table is made, but there is
        no transaction. Raises `BatchRefused` as `has` does."""


def check_columns(schema: pa.Schema) -> None:
    """Raise `OptionRefused` for columns whose type these tables lack, and for missing columns that
    every row needs."""
    for name in (*PARTITION_SOURCES, "seq"):
        if name not in schema.names:
            raise OptionRefused(f"a table needs the column {name}")
    if DAY in schema.names:
        raise OptionRefused(f"a table is partitioned by {DAY}, so no column can have that name")
    for field in schema:
        if _is_variant(field):
            raise OptionRefused(
                f"column {field.name} is a VARIANT, which these tables do not have; headers can be"
                " map or json, and a body binary or string"
            )


def _is_variant(field: pa.Field) -> bool:
    import pyarrow as pa

    return pa.types.is_struct(field.type) and any(
        b"variant" in (child.metadata or {}) for child in field.type
    )
