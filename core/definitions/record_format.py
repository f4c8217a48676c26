"""A definition as octets: what the stores on disk and the store of a cluster have in common.

Paths. Each part of a key as UTF-8 (surrogates passed, so that any `str` has one encoding), with
00 written as 00 FF, closed by 00 01. Paths so encoded sort like the tuples they stand for, and
one starts with another exactly when its tuple does.

Records. MessagePack of [what the store puts first ..., escaped, record]. MessagePack holds no
surrogates: a record that has some, such as an argument name of arbitrary bytes, is written with
`escaped` set, and each character of its strings then stands for one byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from warren.core.definitions.records import RECORD_TYPES
from warren.core.ports import Key

UNREADABLE = (
    msgspec.MsgspecError,
    UnicodeError,
    ValueError,
    TypeError,
    LookupError,
    RecursionError,
)
"""The errors of reading damaged octets."""

NESTING_MAX = 300
"""Levels of a record as MessagePack: AMQP's tables take 128, each of which is two here. What walks
through records recurses, and would break at twice as many."""

_PART_END = b"\0\1"


def encode_path(key: Key) -> bytes:
    return b"".join(encode_part(part).replace(b"\0", b"\0\xff") + _PART_END for part in key)


def decode_path(path: bytes) -> Key:
    """The key of an encoded path. Raises one of `UNREADABLE`."""
    *parts, rest = path.split(_PART_END)
    if rest or not parts:
        raise ValueError(f"path {path!r} does not end where a part ends")
    return tuple(decode_part(part.replace(b"\0\xff", b"\0")) for part in parts)


def encode_part(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def decode_part(part: bytes) -> str:
    return str(part, "utf-8", "surrogatepass")


def encode_with_record(head: tuple[object, ...], record: object) -> bytes:
    """MessagePack of head and record. Raises OverflowError for an integer beyond 64 bits."""
    try:
        return msgspec.msgpack.encode((*head, False, record))
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(record, builtin_types=(bytes,))
        return msgspec.msgpack.encode((*head, True, _each_string(plain, _escape)))


def unpacked(octets: bytes) -> Any:
    """Decode MessagePack. Raises one of `UNREADABLE`."""
    plain = msgspec.msgpack.decode(octets)
    # A level takes an octet at least, so that hardly any record is looked at.
    if len(octets) > NESTING_MAX:
        _check_nesting(plain)
    return plain


def _check_nesting(plain: Any) -> None:
    level = [plain]
    for _ in range(NESTING_MAX):
        level = [
            item
            for nested in level
            for item in (nested.values() if isinstance(nested, dict) else nested)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {NESTING_MAX} levels")


def record_from(kind: str, escaped: bool, plain: Any) -> object:
    """The record in the last two values of `encode_with_record`. Raises one of `UNREADABLE`."""
    if escaped:
        plain = _each_string(plain, _unescape)
    return msgspec.convert(plain, RECORD_TYPES[kind])


def _each_string(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _each_string(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each_string(item, change) for item in value]
    return value


def _escape(text: str) -> str:
    return encode_part(text).decode("latin-1")


def _unescape(text: str) -> str:
    return decode_part(text.encode("latin-1"))
