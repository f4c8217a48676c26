"""Manifests: the lists of what exports consist of. An export exists once its manifest does.

    DEST/_manifests/<export>.json      the export; written last, by rename
    DEST/_staging/<export>/            an unfinished export: its plan, its finished units
    DEST/_SUCCESS                      some export is complete
    DEST/vhost=V/queue=Q/date=D/part-<queue id>-<first seq>-<last seq>-<node>-<export>.parquet

An export is *full*, or has the messages that came after another export, its base (`since`). `chain`
is an export with its base, and the base of that, down to a full one; together they have each
message once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import quote

from warren.backup.shelf import SHARED, Shelf
from warren.backup.shelves import shelf_at
from warren.core.field import to_octets
from warren.spark_export.errors import OptionRefused, StoreRefused

FORMAT = 1

MANIFESTS_DIRECTORY = "_manifests"
STAGING_DIRECTORY = "_staging"
SUCCESS_FILE = "_SUCCESS"

NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name of the directory for null: for damaged records, whose day is unknown."""

Where: TypeAlias = Path | str
"""The place of exports: a directory, or a URL that pyarrow can open."""

EXPORT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

NAME_BYTES_MAX = 200
"""The longest name of a directory; file systems allow 255, and a name of 255 octets may need 765
when it is encoded."""

HASH_BYTES = 1 << 20
"""Octets read at once."""


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export. `path` is relative to the destination; `last_seq` is inclusive.

    Times are microseconds since 1970, None if no message in it has one. `corrupt` counts rows with
    no content but the octets of the record.
    """

    path: str
    vhost: str
    queue: str
    queue_id: str
    date: str | None
    rows: int
    bytes: int
    sha256: str
    first_seq: int
    last_seq: int
    min_enqueued_us: int | None
    max_enqueued_us: int | None
    corrupt: int


@dataclass(frozen=True)
class ExportedQueue:
    """Totals of a queue, or of one level of a queue with priorities."""

    vhost: str
    queue: str
    queue_id: str
    rows: int
    bytes: int
    corrupt: int


@dataclass(frozen=True)
class Manifest:
    """The description of a finished export. `schema` is Spark's, as JSON.

    `options` are those that decided what was read. `high_water` has, by queue id, the position from
    which an increment continues, for all queues that this export and its base have seen.
    `unreadable` counts places of the store that could not be read and are not rows; damaged
    messages are rows, and counted in `files`. `number` is higher than those of all exports that
    were there when this one was finished; 0 of exports from before there were numbers.
    """

    export: str
    since: str | None
    node_id: str
    snapshot: str
    snapshot_us: int
    finished_us: int
    options: dict[str, Any]
    schema: dict[str, Any]
    unreadable: int
    files: tuple[ExportedFile, ...]
    high_water: dict[str, int] = field(default_factory=dict)
    number: int = 0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def corrupt(self) -> int:
        return sum(file.corrupt for file in self.files)

    def queues(self) -> list[ExportedQueue]:
        by_id: dict[str, list[ExportedFile]] = {}
        for file in self.files:
            by_id.setdefault(file.queue_id, []).append(file)
        return [
            ExportedQueue(
                files[0].vhost,
                files[0].queue,
                queue_id,
                sum(file.rows for file in files),
                sum(file.bytes for file in files),
                sum(file.corrupt for file in files),
            )
            for queue_id, files in sorted(by_id.items())
        ]


@dataclass(frozen=True)
class Fault:
    """A file that differs from its manifest."""

    export: str
    path: str
    reason: str


# Places


def shelf_of(destination: Where) -> Shelf:
    """The shelf of a destination. Raises `ShelfRefused`."""
    return shelf_at(destination, SHARED)


def manifest_name(export: str) -> str:
    return f"{MANIFESTS_DIRECTORY}/{export}.json"


def staging_folder(export: str) -> str:
    return f"{STAGING_DIRECTORY}/{export}"


def lock_name(export: str) -> str:
    """The lock of the process that writes the export; no export's name begins with a dot."""
    return f"{STAGING_DIRECTORY}/.{export}.lock"


def check_export_id(export: str) -> str:
    """The name, if an export can have it. Raises `OptionRefused`."""
    if not EXPORT_ID.fullmatch(export):
        raise OptionRefused(
            f"export {export!r}: letters, digits, and . _ - are allowed, 100 at most, and a letter"
            " or digit first"
        )
    return export


def partition_directory(vhost: str, queue: str, date: str | None) -> str:
    day = NO_DATE if date is None else date
    return f"{_partition('vhost', vhost)}/{_partition('queue', queue)}/date={day}"


def _partition(key: str, name: str) -> str:
    octets = to_octets(name)
    encoded = f"{key}={quote(octets, safe='')}"
    if len(encoded) <= NAME_BYTES_MAX:
        return encoded
    digest = blake2b(octets, digest_size=8).hexdigest()
    # Not cut in the middle of an encoded octet.
    return f"{re.sub('%.?$', '', encoded[: NAME_BYTES_MAX - 18])}~{digest}"


def file_name(
    queue_id: int, first_seq: int, last_seq: int, node_id: str, export: str, snapshot: str
) -> str:
    """The name of a file: the same for the same messages of the same export, whichever task writes
    it, and however often. Two processes that write an export of one name, each from a snapshot of
    its own, write other files."""
    of_export = blake2b(f"{export}/{snapshot}".encode(), digest_size=8).hexdigest()
    return f"part-{queue_id:016x}-{first_seq}-{last_seq}-{node_id[:8]}-{of_export}.parquet"


# Writing and reading


def write_manifest(destination: Where, manifest: Manifest, name: str | None = None) -> None:
    """Write the manifest durably; from then on the export exists, unless the file has another name
    than a manifest. Raises OSError."""
    fields = {"format": FORMAT, **asdict(manifest)}
    fields["queues"] = [asdict(queue) for queue in manifest.queues()]
    fields |= {"rows": manifest.rows, "bytes": manifest.bytes, "corrupt": manifest.corrupt}
    octets = json.dumps(fields, indent=1).encode()
    shelf_of(destination).write(name or manifest_name(manifest.export), octets)


def read_manifest(destination: Where, export: str, name: str | None = None) -> Manifest:
    """The manifest of an export, in a file of its usual name or of this one.

    Raises `StoreRefused` if it is missing or unreadable, OSError.
    """
    shelf = shelf_of(destination)
    name = name or manifest_name(export)
    shown = f"{shelf.shown}/{name}"
    try:
        fields = json.loads(shelf.read(name).decode("utf-8"))
    except FileNotFoundError:
        raise StoreRefused(f"{shelf.shown} has no export {export!r}") from None
    except ValueError as error:
        raise StoreRefused(f"{shown} cannot be read: {error}") from None
    return _decode(fields, shown)


def _decode(fields: Any, path: str) -> Manifest:
    try:
        if fields["format"] > FORMAT:
            raise StoreRefused(f"{path} has format {fields['format']}, this version reads {FORMAT}")
        fields = {"number": 0, **fields}
        known = {name: fields[name] for name in Manifest.__dataclass_fields__}
        known["files"] = tuple(ExportedFile(**file) for file in fields["files"])
        return Manifest(**known)
    except (KeyError, TypeError) as error:
        raise StoreRefused(f"{path} cannot be read: {error!r}") from None


def list_manifests(destination: Where) -> list[Manifest]:
    """All manifests, in the order of finishing. Raises `StoreRefused`, OSError."""
    return _in_order([read_manifest(destination, export) for export in _exports(destination)])


def next_number(destination: Where) -> int:
    """The number of the export that is finished next. Raises OSError."""
    number = 0
    for export in _exports(destination):
        # A damaged manifest is refused where its contents are read.
        with suppress(StoreRefused):
            number = max(number, read_manifest(destination, export).number)
    return number + 1


def _exports(destination: Where) -> list[str]:
    names = shelf_of(destination).names(MANIFESTS_DIRECTORY)
    return [
        name.removeprefix(f"{MANIFESTS_DIRECTORY}/")[: -len(".json")]
        for name in names
        if name.endswith(".json")
    ]


def _in_order(found: list[Manifest]) -> list[Manifest]:
    """Sort by their numbers. Those without are sorted by when they were finished, and each behind
    the one that it went on from: the clock may have been set back between them."""
    by_name = {one.export: one for one in found}
    moments: dict[str, int] = {}
    for one in found:
        links: dict[str, Manifest] = {}
        link: Manifest | None = one
        while link is not None and link.export not in moments and link.export not in links:
            links[link.export] = link
            link = None if link.since is None else by_name.get(link.since)
        moment = 0 if link is None else moments.get(link.export, 0)
        for name in reversed(links):
            moment = moments[name] = max(links[name].finished_us, moment + 1)
    return sorted(found, key=lambda one: (one.number, moments[one.export], one.export))


def find_manifest(destination: Where, export: str | None) -> Manifest:
    """The manifest of this export, or the newest for None. Raises `StoreRefused`, OSError."""
    if export is not None:
        return read_manifest(destination, check_export_id(export))
    manifests = list_manifests(destination)
    if not manifests:
        raise StoreRefused(f"there is no finished export in {shelf_of(destination).shown}")
    return manifests[-1]


def chain(destination: Where, manifest: Manifest) -> list[Manifest]:
    """The export and its bases, the full one first. Raises `StoreRefused`, OSError."""
    links = {manifest.export: manifest}
    since = manifest.since
    while since is not None:
        if since in links:
            raise StoreRefused(f"export {manifest.export} has no beginning")
        links[since] = read_manifest(destination, since)
        since = links[since].since
    return list(links.values())[::-1]


def verify(destination: Where, manifest: Manifest) -> Iterator[Fault]:
    """Read every file of the export; yields those that are missing or differ. Raises OSError."""
    shelf = shelf_of(destination)
    for file in manifest.files:
        size = shelf.size(file.path)
        if size is None:
            yield Fault(manifest.export, file.path, "missing")
        elif size != file.bytes:
            reason = f"{size} bytes, {file.bytes} were written"
            yield Fault(manifest.export, file.path, reason)
        else:
            with shelf.open(file.path) as octets:
                if file_digest(octets) != file.sha256:
                    yield Fault(manifest.export, file.path, "its SHA-256 is another one")
                else:
                    yield from _verify_rows(manifest.export, file, octets)


def _verify_rows(export: str, file: ExportedFile, octets: BinaryIO) -> Iterator[Fault]:
    import pyarrow.parquet

    octets.seek(0)
    rows = pyarrow.parquet.read_metadata(octets).num_rows
    if rows != file.rows:
        yield Fault(export, file.path, f"{rows} rows, the manifest has {file.rows}")


def file_digest(octets: BinaryIO) -> str:
    digest = sha256()
    while data := octets.read(HASH_BYTES):
        digest.update(data)
    return digest.hexdigest()
