"""Interfaces of what `core` gets from outside: the clock, the store of definitions, the codec.

Nothing in `core` opens a file, reads a clock or knows AMQP's byte formats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from warren.core.field import Table

Key: TypeAlias = tuple[str, ...]
"""The path of a definition: its kind, then what identifies it, as in ("queue", vhost, name)."""


class Timer(Protocol):
    """A call that will be made once, unless cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time and the calling of functions later."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def wall_time(self) -> float:
        """Seconds since 1970, for what people and headers show."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Run the callback in the next turn of the loop."""
        ...


class AddedHeader(Protocol):
    """Puts one more header, a number of 64 bits with a sign, into content headers."""

    def add(self, header: bytes, number: int) -> bytes:
        """The content header with one more header: behind the others, or in place of that of the
        same name."""
        ...


class ContentCodec(Protocol):
    """Reads and edits raw content headers (`Envelope.header`)."""

    def headers(self, header: bytes) -> Table:
        """The `headers` property; empty when there is none."""
        ...

    def named_headers(self, header: bytes, names: Collection[bytes]) -> Table:
        """Those of `headers` with these names, which takes a fraction of the time."""
        ...

    def property_text(self, header: bytes, name: str) -> bytes | None:
        """A property such as `correlation_id` or `expiration` as its octets; None when absent."""
        ...

    def as_table(self, header: bytes) -> Table:
        """All properties of the header as a table, under their names."""
        ...

    def content_header(self, body_size: int, headers: Table) -> bytes:
        """A header for a body of that size with no property but these headers."""
        ...

    def for_dead_letter(self, header: bytes, headers: Table) -> bytes:
        """A header with these headers in place of its own, and without `expiration`."""
        ...

    def with_death(
        self, header: bytes, first: Table, *, expires: bool
    ) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
        """`for_dead_letter` with one more death among its headers, and the queues and reasons of
        its deaths. `first` are the headers of a message that dies this death as its first one;
        `expires` says that it may have `expiration`.

        It takes a fraction of the time, most of all with the same object `first` again. None if the
        headers have to be decoded.
        """
        ...

    def with_headers(self, header: bytes, headers: Table) -> bytes:
        """A header with these headers in place of its own."""
        ...

    def added_header(self, name: str) -> AddedHeader:
        """Return an object that adds a header of this name to many content headers."""
        ...

    def message_name(self, header: bytes) -> str | None:
        """Return the name of a message: its `message_id`, else its `correlation_id`, else its
        header `traceparent`."""
        ...

    def trace_context(self, header: bytes) -> tuple[str, str]:
        """The headers `traceparent` and `tracestate` of W3C Trace Context; empty texts if there are
        none."""
        ...

    def is_persistent(self, header: bytes) -> bool:
        """Whether the delivery mode is 2."""
        ...


class Write(NamedTuple):
    """One change of a definition: a record to put under the key, or None to delete it.

    A `transient` definition ends with the node; the first write of a key decides whether it is one.
    A cluster judges by the definitions themselves (`mirror/members/leftovers.py`).
    """

    key: Key
    record: object | None
    transient: bool = False


class Precondition(NamedTuple):
    """The version that the key must have for a transaction to succeed; 0: it must not exist."""

    key: Key
    version: int


class Stored(NamedTuple):
    """A definition as the store has it. Its version rises with each write of that key.

    On a single node versions count from 1, and from 1 again when the key was deleted. In a cluster
    a key never has the same version twice.
    """

    key: Key
    record: object
    version: int


class UnreadableText(NamedTuple):
    """A stored definition that is damaged or cannot be understood, as text for people."""

    key: str
    reason: str


class Commit(Protocol):
    """A transaction of definitions that is being stored.

    On a single node it is visible at once, and done when it is on disk. In a cluster it becomes
    visible and done together, or is refused because another node was faster.
    """

    @property
    def done(self) -> bool:
        """Whether it is durable, or refused."""
        ...

    @property
    def visible(self) -> bool:
        """Whether `get` and `records` show it, and the watchers were told."""
        ...

    @property
    def refused(self) -> bool:
        """Whether nothing was written, because another node had changed its preconditions."""
        ...

    def then(self, callback: Callable[[], None]) -> None:
        """Call back on the loop once done; at once if it is already."""
        ...


class Conflict(Exception):
    """A precondition of a transaction did not hold; nothing was written."""


class MetadataStore(Protocol):
    """Typed definitions with versions, written in transactions.

    The store of a single node applies a transaction at once, so that `get` and `records` show it,
    and completes its `Commit` when the change survives a crash. The store of a cluster sends it to
    the store that all nodes share. It applies the transactions of all nodes in the order in which
    the shared store took them. Commits complete in order. A failing disk or an unreachable store
    never completes a commit: the change is kept and tried again, and the log says so.

    A definition that cannot be read is passed over. Until it is written anew it is in `unreadable`,
    by its key in the file or in etcd.
    """

    unreadable: dict[bytes, UnreadableText]

    def get(self, key: Key) -> Stored | None: ...

    def records(self, prefix: Key) -> Iterator[Stored]:
        """All definitions whose key starts with the prefix, in key order."""
        ...

    def keys(self, prefix: Key) -> list[Key]:
        """A copy of the keys under a prefix that names a kind, in order; fast even if many."""
        ...

    def transact(
        self, writes: Sequence[Write], preconditions: Sequence[Precondition] = ()
    ) -> Commit:
        """Write all or nothing. Raises `Conflict` if a precondition does not hold."""
        ...

    def uncommitted(self) -> Commit | None:
        """The youngest commit that is not durable yet."""
        ...

    def watch(
        self, prefix: Key, callback: Callable[[Key, object | None], None]
    ) -> Callable[[], None]:
        """Report each change under the prefix when it is applied; call the result to stop that."""
        ...

    def close(self) -> int:
        """Commit pending transactions and release the store; returns how many were lost."""
        ...
