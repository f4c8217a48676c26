"""Reads the JSON of definitions item by item: tens of megabytes in one go would stop the node.

Answerable for the outer object and the lists in it; the standard library reads each item in one go.
Malformed JSON is refused in the words of the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from json import JSONDecodeError
from typing import Any, TypeAlias

from warren.core.field import NESTED_TOO_DEEP, nested_too_deep
from warren.mgmt.definitions.errors import NotDefinitions

Parsing: TypeAlias = Generator[None, None, dict[str, Any]]
"""Yields after each step, and returns the definitions at the end."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NO_NAME = "Expecting property name enclosed in double quotes"


def parse(octets: bytes) -> dict[str, Any]:
    """Definitions from the octets of a file or a request; no octets are no definitions.

    Raises `NotDefinitions`.
    """
    parsing = parse_in_steps(octets)
    while True:
        try:
            next(parsing)
        except StopIteration as end:
            definitions: dict[str, Any] = end.value
            return definitions


def parse_in_steps(octets: bytes) -> Parsing:
    """The same as `parse`, one item of a list in each step."""
    if not octets:
        return {}
    try:
        definitions = yield from _Text(octets).definitions()
    except (ValueError, RecursionError) as error:
        raise NotDefinitions(str(error), "failed_to_parse_json") from None
    if definitions is None:
        raise NotDefinitions("definitions should be a JSON object", "failed_to_parse_json")
    return definitions


class _Text:
    """JSON text, read from the front."""

    def __init__(self, octets: bytes) -> None:
        self._text = octets.decode(json.detect_encoding(octets), "surrogatepass")
        # Half of a surrogate pair is valid JSON, but cannot be encoded as UTF-8.
        self._may_have_halves = b"\\ud" in octets or b"\\uD" in octets
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        self._at = 0
        self._skip_space()

    def definitions(self) -> Generator[None, None, dict[str, Any] | None]:
        """The definitions, or None if the JSON is not an object.

        Raises ValueError, RecursionError, `NotDefinitions`.
        """
        definitions: dict[str, Any] | None = None
        if self._take("{"):
            definitions = yield from self._members()
        else:
            self._value()
        if self._at < len(self._text):
            raise self._wrong("Extra data")
        return definitions

    def _members(self) -> Generator[None, None, dict[str, Any]]:
        members: dict[str, Any] = {}
        if self._take("}"):
            return members
        while True:
            if not self._next_is('"'):
                raise self._wrong(_NO_NAME)
            name = self._value()
            if not self._take(":"):
                raise self._wrong("Expecting ':' delimiter")
            if self._take("["):
                members[name] = yield from self._items()
            else:
                members[name] = self._value()
            yield
            if self._take("}"):
                return members
            if not self._take(","):
                raise self._wrong("Expecting ',' delimiter")

    def _items(self) -> Generator[None, None, list[Any]]:
        items: list[Any] = []
        if self._take("]"):
            return items
        while True:
            items.append(self._value())
            yield
            if self._take("]"):
                return items
            if not self._take(","):
                raise self._wrong("Expecting ',' delimiter")

    def _value(self) -> Any:
        value, self._at = self._decoder.raw_decode(self._text, self._at)
        self._skip_space()
        if self._may_have_halves:
            json.dumps(value, ensure_ascii=False).encode()
        if nested_too_deep(value):
            raise NotDefinitions(NESTED_TOO_DEEP)
        return value

    def _next_is(self, mark: str) -> bool:
        return self._text.startswith(mark, self._at)

    def _take(self, mark: str) -> bool:
        """Skip this mark if it is next; returns whether it was."""
        if not self._next_is(mark):
            return False
        self._at += 1
        self._skip_space()
        return True

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _wrong(self, message: str) -> JSONDecodeError:
        return JSONDecodeError(message, self._text, self._at)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
