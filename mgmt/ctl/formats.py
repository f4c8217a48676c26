"""Prints the answers of commands: as tab separated tables, boxes, CSV or JSON.

Cells and JSON have RabbitMQ's form (ctl_commands.md section 1), which scripts parse: a list is `[a,
b]`, an AMQP table `[{"k",v}]`, a missing value an empty text. A row stays on one line, whatever
characters are in names.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

FORMATTERS = ("table", "pretty_table", "csv", "json")


@dataclass(frozen=True)
class Table:
    """Rows under columns. Without `headed` even the plain table has no header row.

    `json` is printed as JSON in place of the list of rows, if it is given.
    """

    columns: tuple[str, ...]
    rows: list[list[Any]]
    headed: bool = True
    json: Any = None


@dataclass(frozen=True)
class Document:
    """A text for people, and the same as JSON. Unless it is `alone`, the JSON is an object to which
    `result` and the name of the node are added."""

    text: str
    json: Any
    alone: bool = True


PRINTED = Document("", None)
"""The answer of a command that has printed everything itself."""

Answer: TypeAlias = Table | Document | str | None
"""What a command returns: None if there is nothing to say, a message, a document or a table."""


INT_LIMIT = 1 << 31

BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


class Numbers(tuple[int, ...]):
    """Numbers in braces, such as the version of a protocol."""


@dataclass(frozen=True)
class Style:
    """How to print: the formatter, and whether there is a header row."""

    formatter: str = "table"
    header: bool = True


def render(answer: Answer, style: Style, node: str) -> str:
    """The text to print, with its line ends; may be empty."""
    if style.formatter == "json":
        return _json(answer, node)
    match answer:
        case None:
            return ""
        case str():
            return f"{answer}\n"
        case Document():
            return f"{answer.text}\n" if answer.text else ""
    if style.formatter == "csv":
        return _csv(answer, style)
    if style.formatter == "pretty_table":
        return _boxes(answer)
    return _plain(answer, style)


def _plain(table: Table, style: Style) -> str:
    lines = ["\t".join(map(_one_line, map(cell, row))) for row in table.rows]
    if lines and table.headed and style.header:
        lines.insert(0, "\t".join(table.columns))
    return "".join(f"{line}\n" for line in lines)


def _csv(table: Table, style: Style) -> str:
    output = io.StringIO()
    writer = csv.writer(output, quoting=csv.QUOTE_ALL, lineterminator="\n")
    if style.header:
        writer.writerow(table.columns)
    writer.writerows([[cell(value) for value in row] for row in table.rows])
    return output.getvalue()


def _boxes(table: Table) -> str:
    if not table.rows:
        return ""
    cells = [
        list(table.columns),
        *([_one_line(cell(value)) for value in row] for row in table.rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    lines = [
        "│" + "│".join(f" {text:<{width}} " for text, width in zip(row, widths, strict=True)) + "│"
        for row in cells
    ]
    between = rule("├", "┼", "┤")
    body = f"\n{between}\n".join(lines)
    return f"{rule('┌', '┬', '┐')}\n{body}\n{rule('└', '┴', '┘')}\n"


def _json(answer: Answer, node: str) -> str:
    match answer:
        case None:
            return _line({"result": "ok", "node": node})
        case str():
            return _line({"result": "ok", "node": node, "message": answer})
        case Document(text="", json=None):
            return ""
        case Document(json=value, alone=alone):
            return _line(value if alone else {"result": "ok", "node": node, **value})
        case Table(json=value) if value is not None:
            return _line(value)
    return "[\n" + "\n,".join(_json_rows(answer)) + ("\n]\n" if answer.rows else "]\n")


def _json_rows(table: Table) -> Iterator[str]:
    for row in table.rows:
        values = dict(zip(table.columns, map(_json_value, row), strict=True))
        yield as_json(values)


def _json_value(value: Any) -> Any:
    """RabbitMQ writes no null, and writes the entries of AMQP tables with their types."""
    if value is None:
        return ""
    return _typed(value) if isinstance(value, dict) else value


def _typed(table: dict[str, Any]) -> list[Any]:
    return [[name, *_with_type(value)] for name, value in table.items()]


def _with_type(value: Any) -> tuple[str, Any]:
    """The likely type of a value: the JSON of the API does not tell it."""
    match value:
        case bool():
            return "bool", value
        case int():
            return ("signedint" if -INT_LIMIT <= value < INT_LIMIT else "long"), value
        case float():
            return "double", value
        case dict():
            return "table", _typed(value)
        case list():
            return "array", [list(_with_type(item)) for item in value]
        case None:
            return "void", "undefined"
    return "longstr", value


def _line(value: Any) -> str:
    return as_json(value) + "\n"


def as_json(value: Any) -> str:
    """A value as JSON. Programs read JSON as UTF-8, so if the standard output has another encoding,
    all letters beyond ASCII are escaped."""
    text = msgspec.json.encode(value).decode()
    if codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8":
        return text
    return BEYOND_ASCII.sub(lambda letter: json.dumps(letter[0])[1:-1], text)


# Cells


def cell(value: Any) -> str:
    """A value as a table has it."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case dict():
            return term(value)
        case Numbers():
            return "{" + ",".join(map(str, value)) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(cell, value)) + "]"
    return str(value)


def term(value: Any) -> str:
    """A value of an AMQP table, with texts in quotes."""
    match value:
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case dict():
            return (
                "[" + ",".join(f"{{{term(key)},{term(item)}}}" for key, item in value.items()) + "]"
            )
        case list():
            return "[" + ",".join(map(term, value)) + "]"
    return cell(value)


_ESCAPES = {code: f"\\{code:03o}" for code in (*range(32), 127)}


def _one_line(text: str) -> str:
    """Escape tabs and line ends, which would make further columns and rows."""
    return text if text.isprintable() else text.translate(_ESCAPES)


# Texts that several commands show

UNITS = {
    "b": 1, "bytes": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
DEFAULT_UNIT = "gb"


def amount(octets: float, unit: str) -> str:
    """An amount of bytes in a unit of `UNITS`."""
    if UNITS[unit] == 1:
        return f"{octets:.0f} {unit}"
    return f"{round(octets / UNITS[unit], 4)} {unit}"


def sections(parts: Mapping[str, list[str]]) -> str:
    """Titles, each with its lines; titles are bold on a terminal."""
    bold = "\033[1m{}\033[0m" if sys.stdout.isatty() else "{}"
    return "\n\n".join(
        "\n".join([bold.format(title), "", *lines]) for title, lines in parts.items()
    )
