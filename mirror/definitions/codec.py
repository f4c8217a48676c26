"""The encoding of definitions in etcd.

- Key: `<prefix of the cluster>/definitions/`, then the path of the definition
  (`core/definitions/record_format.py`). No name is too long for a key of etcd, so the whole path is
  in the key.
- Value: MessagePack of [value format, false, escaped, record]; what earlier versions wrote in the
  place of `false` is not read any more. The version of a definition is the revision at which its
  key was written last. (etcd's own version of a key begins anew when the key is deleted. With it a
  node that was cut off could take a new definition for the one it knows.)
"""

from __future__ import annotations

from warren.core.definitions.definition_table import Change
from warren.core.definitions.record_format import (
    UNREADABLE,
    decode_path,
    encode_path,
    encode_with_record,
    record_from,
    unpacked,
)
from warren.core.definitions.records import RECORD_TYPES
from warren.core.ports import Key, Stored
from warren.mirror.definitions.etcd_messages import end_of

VALUE_FORMAT = 1


class UnreadableDefinition(Exception):
    """A definition in etcd that this version of Warren cannot read; the text says why."""


class NewerDefinition(UnreadableDefinition):
    """A later version of Warren wrote the definition."""


class Keys:
    """The keys of a cluster's definitions in etcd. `watched` also covers the writers' heads, so
    that every batch shows in the watch, but not their marks, which only the writer itself needs.
    """

    def __init__(self, prefix: str) -> None:
        root = prefix.rstrip("/").encode() + b"/"
        self.definitions = root + b"definitions/"
        self.writers = root + b"definitions-writers/"
        self.marks = root + b"batch-marks/"
        self.watched = (root + b"definitions-", end_of(self.definitions))

    def key(self, key: Key) -> bytes:
        return self.definitions + encode_path(key)

    def path(self, key: bytes) -> bytes:
        """The encoded path of a key below `definitions`."""
        return key[len(self.definitions) :]


def encode_definition(key: Key, record: object) -> bytes:
    """The value of a definition. Raises OverflowError for an integer beyond 64 bits."""
    assert type(record) is RECORD_TYPES[key[0]], (key, record)
    return encode_with_record((VALUE_FORMAT, False), record)


def decode_definition(path: bytes, value: bytes, version: int) -> Change:
    """The change made by putting a definition. Raises `UnreadableDefinition`."""
    try:
        value_format, *rest = unpacked(value)
        if value_format > VALUE_FORMAT:
            raise NewerDefinition(
                f"definition {path!r} has format {value_format}, this version of Warren reads up"
                f" to {VALUE_FORMAT}; update this node"
            )
        _, escaped, plain = rest
        key = decode_path(path)
        record = record_from(key[0], escaped, plain)
    except UNREADABLE as error:
        raise UnreadableDefinition(f"definition {path!r} cannot be read: {error}") from None
    return Change(key, Stored(key, record, version))


def decode_deletion(path: bytes) -> Change:
    """The change made by deleting a definition. Raises `UnreadableDefinition`."""
    try:
        return Change(decode_path(path), None)
    except UNREADABLE as error:
        raise UnreadableDefinition(f"key {path!r} cannot be read: {error!r}") from None
