"""The options of `spark.read.format("warren")` and `spark.readStream`: text in, checked values out.

Names are case-insensitive, as everywhere in Spark. An unknown option is refused, and so is a wrong
value: a query that silently reads something else is worse than none. Conditions on the store, such
as that a queue exists, are checked later.

| option | value | without it |
|---|---|---|
| `path` | the data directory of a node, or a URL of its HTTP API | needed |
| `username`, `password` | of the HTTP API, if not in the URL | `guest`, `guest` |
| `caFile` | certificates to trust, for https | the system's |
| `vhost` | name of a virtual host | all |
| `queue`, `queues`, `queuePattern` | a name; names with commas, or JSON; as in policies | all |
| `startingOffsets`, `endingOffsets` | `earliest`, `latest`, or JSON, see `Offsets` | everything |
| `startingTimestamp`, `endingTimestamp` | ISO 8601, or ms since 1970; end exclusive | all |
| `columns` | names with commas between | all |
| `headers` | `map`, `json`, `variant`, `none` | `map` |
| `bodyFormat` | `binary`, `string`, `json` | `binary` |
| `include` | some of `ready`, `unacked` and `retained`, with commas | `ready,unacked` |
| `mode` | `PERMISSIVE`, `DROPMALFORMED`, `FAILFAST` | `PERMISSIVE` |
| `columnNameOfCorruptRecord` | name of a column | `_corrupt_record` |
| `failOnDataLoss` | `true`, `false` | `true` |
| `maxPartitionBytes` | bytes, or 128m | 128m |
| `minPartitions` | a number | 1 |
| `includeMetadata` | `true`, `false` | `false` |
| `snapshot`, `snapshotDirectory` | an id; where snapshots stand | a new one; in the store |
| `leaseSeconds` | how long a new snapshot is kept at most | 3600; 24 hours in a stream |
| `filterPushdown` | `true`, `false` | what was registered |
| `maxOffsetsPerTrigger`, `maxBytesPerTrigger` | a number; bytes | no limit |
| `cursor`, `cursorMaxBytes` | a name for a stream's snapshots; bytes | a lease; no limit |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from warren.core.patterns.pattern import InvalidPattern, compile_pattern
from warren.persist.snapshots.cursors import NAME as CURSOR_NAME
from warren.persist.snapshots.pins import NAME as SNAPSHOT_NAME
from warren.spark_export.errors import OptionRefused
from warren.spark_export.node_urls import is_node_url, parse_node_url, without_login
from warren.spark_export.snapshot.snapshot_file import LEASE_S_MAX

PARTITION_BYTES = 128 << 20
"""A partition costs about 50 ms of its own; with this size that is a few per cent."""

MILLISECONDS_MIN = 10**11
"""A time in 1973; smaller numbers are probably seconds of this century, or like 20260131."""

OF_TABLES = ("provider", "owner", "location")
"""Options that Spark adds to those of CREATE TABLE."""

POSITION_MAX = (1 << 63) - 1

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Headers(StrEnum):
    """The form of the column `headers`."""

    MAP = "map"
    JSON = "json"
    VARIANT = "variant"
    NONE = "none"


class BodyFormat(StrEnum):
    """The form of the column `body`; JSON becomes a VARIANT."""

    BINARY = "binary"
    STRING = "string"
    JSON = "json"


class Include(StrEnum):
    READY = "ready"
    UNACKED = "unacked"
    RETAINED = "retained"


IN_QUEUE = frozenset({Include.READY, Include.UNACKED})
"""The messages in the queue. Acknowledged messages that are retained are not in it."""


class Mode(StrEnum):
    """The treatment of records that are damaged or cannot be understood."""

    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


Bound: TypeAlias = int | Literal["earliest", "latest"]

QueueName: TypeAlias = tuple[str, str]
"""Virtual host and queue."""


@dataclass(frozen=True)
class Offsets:
    """Where to start or to stop (exclusive) reading queues.

    As JSON `{"/": {"orders": 17, "invoices": "latest"}}`; `default` is for all other queues.
    """

    default: Bound
    queues: tuple[tuple[QueueName, Bound], ...] = ()

    def of(self, vhost: str, queue: str) -> Bound:
        return dict(self.queues).get((vhost, queue), self.default)

    def bounds(self) -> set[Bound]:
        return {self.default} | {bound for _, bound in self.queues}


@dataclass(frozen=True)
class ReadOptions:
    """The values of the options. Times are microseconds since 1970, sizes bytes."""

    path: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    vhost: str | None = None
    queues: tuple[str, ...] | None = None
    queue_pattern: str | None = None
    starting_offsets: Offsets = Offsets("earliest")
    ending_offsets: Offsets = Offsets("latest")
    starting_timestamp_us: int | None = None
    ending_timestamp_us: int | None = None
    columns: tuple[str, ...] | None = None
    headers: Headers = Headers.MAP
    body_format: BodyFormat = BodyFormat.BINARY
    include: frozenset[Include] = IN_QUEUE
    mode: Mode = Mode.PERMISSIVE
    corrupt_column: str = "_corrupt_record"
    fail_on_data_loss: bool = True
    max_partition_bytes: int = PARTITION_BYTES
    min_partitions: int = 1
    include_metadata: bool = False
    snapshot: str | None = None
    snapshot_directory: str | None = None
    lease_seconds: int | None = None
    filter_pushdown: bool = False
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    cursor: str | None = None
    cursor_max_bytes: int | None = None

    @property
    def needs_state(self) -> bool:
        """Whether a running node that cannot be asked about deliveries is an error."""
        named = not {"state", "redelivered"}.isdisjoint(self.columns or ())
        return named or len(self.include & IN_QUEUE) == 1

    @property
    def wants_retained(self) -> bool:
        return Include.RETAINED in self.include

    @property
    def data_directory(self) -> Path:
        """The data directory in the option `path`. Raises `OptionRefused` if there is no path."""
        if self.path is None:
            raise OptionRefused(
                "option path is missing: the data directory of a node, or warren://node:15672 (a"
                " table of CREATE TABLE has lost it; CREATE TEMPORARY VIEW keeps it)"
            )
        if self.path.startswith("file:"):
            return Path(unquote(urlsplit(self.path).path))
        return Path(self.path)

    @property
    def node_url(self) -> str | None:
        """The URL of the node that makes the snapshots; None if they are made from a data
        directory."""
        return self.path if self.path is not None and is_node_url(self.path) else None

    def without_login(self) -> ReadOptions:
        """The options for tasks, which use the token of a snapshot instead of a login."""
        path = self.path if self.node_url is None else without_login(self.node_url)
        return replace(self, path=path, username=None, password=None)


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """The checked options. Raises `OptionRefused`."""
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, text in given.items():
        option = _OPTIONS.get(key.lower())
        if option is None:
            raise OptionRefused(_unknown(key))
        field = _FIELDS[option]
        if field in names:
            raise OptionRefused(f"options {names[field]} and {option} exclude each other")
        names[field] = option
        values[field] = _PARSERS[option](option, text)
    if "queues" in values and "queue_pattern" in values:
        raise OptionRefused(f"options {names['queues']} and queuePattern exclude each other")
    if "cursor_max_bytes" in values and "cursor" not in values:
        raise OptionRefused("option cursorMaxBytes says what a cursor may keep; name a cursor too")
    if "lease_seconds" in values and "snapshot" in values:
        raise OptionRefused(
            "option leaseSeconds is for a snapshot that is taken; that of the one named is extended"
            " by warren export snapshot extend"
        )
    if "lease_seconds" in values and "cursor" in values:
        raise OptionRefused(
            "option leaseSeconds is for a stream without a cursor; a cursor keeps its snapshots"
            " until it is ended, cursorMaxBytes says how much of them"
        )
    if values.get("lease_seconds", 0) > LEASE_S_MAX:
        raise OptionRefused(f"option leaseSeconds may be {LEASE_S_MAX} at most")
    options = ReadOptions(**values)
    _check_place(options)
    _check_range(options)
    return options


def near_names(name: str, known: Iterable[str]) -> str:
    """The end of an error text: the names that may have been meant, or all names."""
    by_lower = {other.lower(): other for other in known}
    near = get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(by_lower[match] for match in near) + "?"
    return "there are " + ", ".join(by_lower.values())


def _unknown(key: str) -> str:
    if key.lower() in OF_TABLES:
        return (
            "CREATE TABLE USING warren would make a table that cannot be read, because Spark does"
            " not hand its options to a source in Python; CREATE TEMPORARY VIEW ... USING warren"
            " OPTIONS (...) can be read, one for each store"
        )
    if key.lower() == "paths":
        return "one path is read at a time"
    return f"there is no option {key}; {near_names(key, _FIELDS)}"


def _check_place(options: ReadOptions) -> None:
    if options.node_url is None:
        for name, value in (
            ("username", options.username),
            ("password", options.password),
            ("caFile", options.ca_file),
        ):
            if value is not None:
                raise OptionRefused(f"option {name} is for a path such as warren://node:15672")
    else:
        if options.snapshot_directory is not None:
            raise OptionRefused("option snapshotDirectory is for data directories, not for nodes")
        parse_node_url(options.node_url, options.ca_file, options.username, options.password)
    if "://" in (options.snapshot_directory or ""):
        raise OptionRefused(
            "option snapshotDirectory is for a directory that driver and executors have at the"
            " same place, not for a URL"
        )
    scheme, separator, _ = (options.path or "").partition("://")
    if separator and options.node_url is None and scheme.lower() != "file" and "/" not in scheme:
        raise OptionRefused(
            f"option path begins with {scheme}://, which cannot be read from; what can is a data"
            " directory, also as file:///directory, or a node: warren://, http:// or https://"
        )
    if (options.path or "").startswith("file:"):
        _check_file_url(str(options.path))


def _check_file_url(path: str) -> None:
    parts = urlsplit(path)
    if parts.netloc.lower() not in ("", "localhost"):
        raise OptionRefused(
            f"option path is {path!r}, a file of host {parts.netloc}; a directory of this machine"
            " is file:///directory, and a node of another one is warren://node:15672"
        )
    if parts.query or parts.fragment:
        raise OptionRefused(
            f"option path is {path!r}: in a file: URL, ? is written as %3F and # as %23"
        )


def _check_range(options: ReadOptions) -> None:
    start, end = options.starting_timestamp_us, options.ending_timestamp_us
    if start is not None and end is not None and start > end:
        raise OptionRefused("option startingTimestamp is later than option endingTimestamp")


# Values


def _refused(option: str, text: str, wanted: str) -> OptionRefused:
    return OptionRefused(f"option {option} is {text!r}, and may be {wanted}")


def _text(option: str, text: str) -> str:
    if not text:
        raise _refused(option, text, "any text that is not empty")
    return text


def _queue(option: str, text: str) -> tuple[str, ...]:
    return (_text(option, text),)


def _names(option: str, text: str) -> tuple[str, ...]:
    wanted = "names with commas between, or a JSON list of names"
    names: Any = text.split(",")
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            raise _refused(option, text, wanted) from None
    else:
        names = [name.strip() for name in names]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise _refused(option, text, wanted)
    return tuple(dict.fromkeys(names))


_Choice = TypeVar("_Choice", bound=StrEnum)


def _one_of(kind: type[_Choice]) -> Callable[[str, str], _Choice]:
    by_lower = {member.lower(): member for member in kind}

    def parse(option: str, text: str) -> _Choice:
        member = by_lower.get(text.strip().lower())
        if member is None:
            raise _refused(option, text, ", ".join(kind))
        return member

    return parse


def _include(option: str, text: str) -> frozenset[Include]:
    parse = _one_of(Include)
    return frozenset(parse(option, part) for part in text.split(","))


def _boolean(option: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise _refused(option, text, "true, false")
    return value


def _number(option: str, text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text) or int(text) < 1:
        raise _refused(option, text, "a whole number from 1 on")
    return int(text)


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _bytes(option: str, text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([kmgt]?)i?b?\s*", text.lower())
    if match is None or int(match[1]) < 1:
        raise _refused(option, text, "a number of bytes such as 134217728 or 128m")
    return int(match[1]) * _UNITS[match[2]]


def _timestamp_us(option: str, text: str) -> int:
    """A time: numbers are milliseconds, as in Kafka's source; texts without a zone are UTC."""
    stripped = text.strip()
    wanted = "a time such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
    if re.fullmatch(r"[0-9]{1,15}", stripped):
        if 0 < int(stripped) < MILLISECONDS_MIN:
            raise _refused(option, text, f"{wanted}; this looks like seconds, a year or a day")
        return int(stripped) * 1000
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise _refused(option, text, wanted) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return microseconds(moment)


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970; exact, unlike floating point."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def _offsets(default: Bound) -> Callable[[str, str], Offsets]:
    def parse(option: str, text: str) -> Offsets:
        word = text.strip().lower()
        if word == "earliest":
            return Offsets("earliest")
        if word == "latest":
            return Offsets("latest")
        wanted = 'earliest, latest, or JSON such as {"/": {"orders": 17, "invoices": "latest"}}'
        try:
            parsed = json.loads(text)
            queues = tuple(
                ((str(vhost), str(queue)), _bound(bound))
                for vhost, by_queue in parsed.items()
                for queue, bound in by_queue.items()
            )
        except (ValueError, AttributeError, RecursionError):
            raise _refused(option, text, wanted) from None
        return Offsets(default, queues)

    return parse


def _bound(value: Any) -> Bound:
    """The bound in JSON. Raises ValueError."""
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= POSITION_MAX:
        raise ValueError(value)
    return value


def _cursor(option: str, text: str) -> str:
    if not CURSOR_NAME.fullmatch(text) or SNAPSHOT_NAME.fullmatch(text):
        wanted = "a name of letters, digits, - _ and . that does not begin with ."
        raise _refused(option, text, wanted)
    return text


def _pattern(option: str, text: str) -> str:
    try:
        compile_pattern(_text(option, text))
    except InvalidPattern as error:
        raise _refused(option, text, f"a regular expression ({error.reason})") from None
    return text


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "path": _text,
    "vhost": _text,
    "queue": _queue,
    "queues": _names,
    "queuePattern": _pattern,
    "startingOffsets": _offsets("earliest"),
    "endingOffsets": _offsets("latest"),
    "startingTimestamp": _timestamp_us,
    "endingTimestamp": _timestamp_us,
    "columns": _names,
    "headers": _one_of(Headers),
    "bodyFormat": _one_of(BodyFormat),
    "include": _include,
    "mode": _one_of(Mode),
    "columnNameOfCorruptRecord": _text,
    "failOnDataLoss": _boolean,
    "maxPartitionBytes": _bytes,
    "minPartitions": _number,
    "includeMetadata": _boolean,
    "snapshot": _text,
    "snapshotDirectory": _text,
    "leaseSeconds": _number,
    "filterPushdown": _boolean,
    "maxOffsetsPerTrigger": _number,
    "maxBytesPerTrigger": _bytes,
    "cursor": _cursor,
    "cursorMaxBytes": _bytes,
    "username": _text,
    "password": _text,
    "caFile": _text,
}

_OTHER_FIELDS = {
    "queue": "queues",
    "startingTimestamp": "starting_timestamp_us",
    "endingTimestamp": "ending_timestamp_us",
    "columnNameOfCorruptRecord": "corrupt_column",
}


def _field_of(option: str) -> str:
    return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), option)


_OPTIONS = {option.lower(): option for option in _PARSERS}
_FIELDS = {option: _OTHER_FIELDS.get(option, _field_of(option)) for option in _PARSERS}

assert set(_FIELDS.values()) == {field.name for field in fields(ReadOptions)}
