"""Prints what a command answers: as tab separated tables, boxes, CSV or JSON.

The form of cells and of JSON is RabbitMQ's (ctl_commands.md section 1), which scripts parse: lists
are `[a, b]`, tables of AMQP `[{"k",v}]`, what is not there an empty text. Whatever a name has in
it, a row stays one line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

FORMATTERS = ("table", "pretty_table", "csv", "json")


@dataclass(frozen=True)
class Table:
    """Rows under columns. Without `headed` even the plain table has no header row."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    headed: bool = True


@dataclass(frozen=True)
class Document:
    """A text for people and the same as JSON. `alone`: the JSON is all there is."""

    text: str
    json: Any
    alone: bool = True


Answer: TypeAlias = Table | Document | str | None
"""Nothing, a message, a table or a document."""


class Texts(tuple[str, ...]):
    """A list whose texts stand in quotes."""


@dataclass(frozen=True)
class Style:
    """How to print: the formatter, and whether there is a header row."""

    formatter: str = "table"
    header: bool = True


def render(answer: Answer, style: Style, node: str) -> str:
    """The text to print, with its line ends; empty for nothing."""
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
    writer = csv.writer(output, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    if style.header:
        writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([value if _is_number(value) else cell(value) for value in row])
    return output.getvalue()


def _boxes(table: Table) -> str:
    if not table.rows:
        return ""
    cells = [list(table.columns), *([_one_line(cell(value)) for value in row] for row in table.rows)]
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
        case Document(json=value, alone=alone):
            return _line(value if alone else {"result": "ok", "node": node, **value})
    return "[\n" + "\n,".join(_json_rows(answer)) + ("\n]\n" if answer.rows else "]\n")


def _json_rows(table: Table) -> Iterator[str]:
    for row in table.rows:
        values = ["" if value is None else value for value in row]
        yield msgspec.json.encode(dict(zip(table.columns, values, strict=True))).decode()


def _line(value: Any) -> str:
    return msgspec.json.encode(value).decode() + "\n"


# Cells


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case dict():
            return term(value)
        case Texts():
            return term(list(value))
        case list() | tuple():
            return "[" + ", ".join(map(cell, value)) + "]"
    return str(value)


def term(value: Any) -> str:
    """A value of an AMQP table, with texts in quotes."""
    match value:
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case dict():
            return "[" + ",".join(f"{{{term(key)},{term(item)}}}" for key, item in value.items()) + "]"
        case list():
            return "[" + ",".join(map(term, value)) + "]"
    return cell(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_ESCAPES = {code: f"\\{code:03o}" for code in (*range(32), 127)}


def _one_line(text: str) -> str:
    """Tabs and line ends must not make columns and rows."""
    return text if text.isprintable() else text.translate(_ESCAPES)


# Texts that several commands show

UNITS = {
    "b": 1, "bytes": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
DEFAULT_UNIT = "gb"


def amount(octets: float, unit: str) -> str:
    """Bytes in a unit of `UNITS`."""
    if UNITS[unit] == 1:
        return f"{octets:.0f} {unit}"
    return f"{round(octets / UNITS[unit], 4)} {unit}"


def section(title: str, lines: list[str]) -> str:
    return "\n".join([title, "", *lines, ""])
