"""Reads the values from the items of definitions, and raises errors that say what is wrong.

Names and patterns become part of keys and of frames, so their types and lengths are checked here.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Any, TypeAlias

from warren.core.definitions.validation import term
from warren.core.field import SHORT_STRING_MAX, NoField, Table, from_json
from warren.mgmt.definitions.errors import InvalidItem, InvalidUser, NotDefinitions

Item: TypeAlias = Mapping[str, Any]


def sections(definitions: Any, names: tuple[str, ...]) -> dict[str, list[Item]]:
    """The lists of these names, as far as they exist. Raises `NotDefinitions`."""
    if not isinstance(definitions, dict):
        raise NotDefinitions("definitions should be a JSON object", "failed_to_parse_json")
    found = {}
    for name in names:
        if name not in definitions:
            continue
        items = definitions[name]
        if not isinstance(items, list):
            raise NotDefinitions(f"{name} should be a list, actually was {_short(items)}")
        for item in items:
            if not isinstance(item, dict):
                raise NotDefinitions(f"{name} should be objects, one was {_short(item)}")
        found[name] = items
    return found


def text(item: Item, key: str, where: str, default: str | None = None) -> str:
    """A string of any length."""
    value = item.get(key, default)
    if not isinstance(value, str):
        shown = _short(value) if key in item else "undefined"
        raise NotDefinitions(f"{where}: {key} should be a string, actually was {shown}")
    return value


def name(item: Item, key: str, where: str, *, may_be_empty: bool = False) -> str:
    """A string that fits into 255 octets."""
    value = text(item, key, where)
    if len(value.encode()) > SHORT_STRING_MAX:
        raise NotDefinitions(f"{where}: {key} is longer than {SHORT_STRING_MAX} octets")
    if not value and not may_be_empty:
        raise NotDefinitions(f"{where}: {key} should not be empty")
    return value


def flag(item: Item, key: str, where: str, default: bool | None = None) -> bool:
    value = item.get(key, default)
    if not isinstance(value, bool):
        shown = _short(value) if key in item else "undefined"
        raise NotDefinitions(f"{where}: {key} should be true or false, actually was {shown}")
    return value


def arguments(item: Item, where: str) -> Table:
    try:
        return from_json(item.get("arguments", {}))
    except NoField as error:
        raise InvalidItem(f"{where}: {error.text}", error.text) from None


def tags(value: Any, where: str) -> list[str]:
    """A list of tags; older definitions have them in one string, separated by commas."""
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    if isinstance(value, list) and all(isinstance(tag, str | int | float) for tag in value):
        return [str(tag) for tag in value]
    raise NotDefinitions(
        f"{where}: tags should be a list of strings, actually were {_short(value)}"
    )


def password_hash(value: Any, user: str) -> bytes:
    if not isinstance(value, str):
        raise NotDefinitions(
            f"user '{user}': password_hash should be a string, actually was {_short(value)}"
        )
    try:
        return b64decode(value, validate=True)
    except (Base64Error, ValueError):
        raise InvalidUser(
            f"user '{user}': password_hash is not base64: {term(value)}", ["not_base64", value]
        ) from None


def _short(value: Any) -> str:
    shown = term(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
