"""Definitions on disk that are damaged, or of another format than this version writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from definition_stores import open_store
from metadata_contract import keys, vhost

from warren.core.definitions.record_format import NESTING_MAX
from warren.core.definitions.records import (
    QueueRecord,
)
from warren.core.ports import Key, Precondition, Write
from warren.persist.definitions.database import DamagedMetadata, open_environment
from warren.persist.definitions.metadata import decode_definition, encode_key
from warren.persist.disk.data_directory import (
    NewerFormat,
)


def put_raw(path: Path, key: Key, value: bytes) -> None:
    with open_environment(path / "metadata", 1 << 20) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(encode_key(key), value)


def raw(path: Path, key: Key) -> bytes:
    with open_environment(path / "metadata", 1 << 20) as environment:
        with environment.begin() as transaction:
            return bytes(transaction.get(encode_key(key)))


def deep(levels: int) -> bytes:
    """MessagePack of a definition whose record is nested so deep."""
    head = msgspec.msgpack.encode((1, [b"parameter", b"a", b"/", b"b"], 1, False))
    record = b"\x81\xa5value" + b"\x91" * levels + b"\xc0"
    return b"\x95" + head[1:] + record


@pytest.mark.parametrize(
    "value",
    [
        msgspec.msgpack.encode((1, [b"vhost", b"b"], 1, False, {})),
        msgspec.msgpack.encode((1, [b"vhost", b"a"], 1, False, {"tags": 1})),
        msgspec.msgpack.encode((1, [b"unheard of", b"a"], 1, False, {})),
        msgspec.msgpack.encode((1, [b"vhost", b"a"])),
        msgspec.msgpack.encode((2, "whatever")),
        msgspec.msgpack.encode((0, [b"vhost", b"a"], 1, False, {})),
        msgspec.msgpack.encode(7),
        b"",
        b"\xc1",
        deep(5000),
        deep(NESTING_MAX),
    ],
)
def test_a_definition_that_cannot_be_read_is_passed_over_named_and_left(
    tmp_path: Path, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    store.transact([Write(("vhost", "whole"), vhost())])
    store.close()
    put_raw(tmp_path, ("vhost", "a"), value)
    for _ in range(2):
        store = open_store(tmp_path)
        assert keys(store) == [("vhost", "whole")]
        assert [one.key for one in store.unreadable.values()] == ["vhost/a"]
        assert "definition_unreadable key=vhost/a" in caplog.text
        store.close()
        assert raw(tmp_path, ("vhost", "a")) == value
    store = open_store(tmp_path)
    store.transact([Write(("vhost", "a"), vhost())], [Precondition(("vhost", "a"), 0)])
    assert not store.unreadable
    store.close()
    store = open_store(tmp_path)
    assert keys(store) == [("vhost", "a"), ("vhost", "whole")] and not store.unreadable
    store.close()


def test_a_later_format_of_a_definition_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    put_raw(tmp_path, ("vhost", "a"), msgspec.msgpack.encode((3, "whatever")))
    with pytest.raises(NewerFormat, match="has format 3, this version of Warren reads up to 2"):
        open_store(tmp_path)


def test_definitions_from_before_there_were_checksums_are_read(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    put_raw(tmp_path, ("vhost", "a"), msgspec.msgpack.encode((1, [b"vhost", b"a"], 4, False, {})))
    parameter = ("parameter", "a", "/", "b")
    put_raw(tmp_path, parameter, deep(NESTING_MAX - 3))
    store = open_store(tmp_path)
    stored = store.get(("vhost", "a"))
    assert stored is not None and stored.version == 4
    assert store.get(parameter) is not None and not store.unreadable
    store.close()


def test_every_flipped_bit_of_a_definition_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    key = ("queue", "/", "q")
    store.transact([Write(key, QueueRecord(False, {"x-max-length": ["I", 7]}, 0x100))])
    store.close()
    value = raw(tmp_path, key)
    for bit in range(8 * len(value)):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedMetadata):
            decode_definition(encode_key(key), bytes(flipped))
    with pytest.raises(DamagedMetadata):
        decode_definition(encode_key(("queue", "/", "r")), value)


def test_a_file_that_is_not_lmdb_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    (tmp_path / "metadata" / "data.mdb").write_bytes(b"not LMDB" * 1000)
    with pytest.raises(DamagedMetadata):
        open_store(tmp_path)
