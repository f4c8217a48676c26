"""The output formats of `warren ctl`."""

from __future__ import annotations

import io
import json

import pytest

from warren.mgmt.ctl.formats import Document, Numbers, Style, Table, amount, cell, render

TABLE = Table(("name", "arguments"), [["q", {"x-max-length": 10}], ["", {}]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        ("a b", "a b"),
        (["a", "b"], "[a, b]"),
        ([], "[]"),
        ({}, "[]"),
        ({"k": "v", "n": 1, "t": {"x": False}}, '[{"k","v"},{"n",1},{"t",[{"x",false}]}]'),
        ({"q": 'a"b\\', "l": ["x"]}, '[{"q","a\\"b\\\\"},{"l",["x"]}]'),
        (Numbers((0, 9, 1)), "{0,9,1}"),
    ],
)
def test_cells_look_like_those_of_rabbitmq(value: object, text: str) -> None:
    assert cell(value) == text


def test_table_has_a_header_and_tabs() -> None:
    assert render(TABLE, Style(), "n") == 'name\targuments\nq\t[{"x-max-length",10}]\n\t[]\n'
    assert render(TABLE, Style(header=False), "n").startswith("q\t")


def test_empty_table_has_no_header() -> None:
    assert render(Table(("name",), []), Style(), "n") == ""


def test_name_with_a_line_end_stays_one_row() -> None:
    assert render(Table(("name",), [["a\nb\tc\x1b[31m é"]]), Style(header=False), "n") == (
        "a\\012b\\011c\\033[31m é\n"
    )


def test_csv_quotes_every_cell() -> None:
    text = render(Table(("name", "n"), [['a"b,c', 1]]), Style("csv"), "n")
    assert text == '"name","n"\n"a""b,c","1"\n'


def test_pretty_table_has_boxes_as_wide_as_their_cells() -> None:
    lines = render(Table(("name",), [["longer name"]]), Style("pretty_table"), "n").splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[3] == "│ longer name │"


@pytest.mark.parametrize(
    ("encoding", "escaped"), [("utf-8", "é日😀"), ("latin-1", "\\u00e9\\u65e5\\ud83d\\ude00")]
)
def test_json_can_be_read_whatever_the_encoding_of_the_output_is(
    monkeypatch: pytest.MonkeyPatch, encoding: str, escaped: str
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    text = render(Table(("name",), [["é日😀"]]), Style("json"), "n")
    assert text == f'[\n{{"name":"{escaped}"}}\n]\n'
    assert json.loads(text) == [{"name": "é日😀"}]


def test_json_tables_are_objects_with_typed_arguments() -> None:
    rows = json.loads(render(TABLE, Style("json"), "n"))
    assert rows[0] == {"name": "q", "arguments": [["x-max-length", "signedint", 10]]}
    assert rows[1]["arguments"] == []
    assert json.loads(render(Table(("name",), []), Style("json"), "n")) == []


def test_json_of_a_command_without_answer_says_ok() -> None:
    assert json.loads(render(None, Style("json"), "n@h")) == {"result": "ok", "node": "n@h"}
    said = json.loads(render("Done", Style("json"), "n@h"))
    assert said == {"result": "ok", "node": "n@h", "message": "Done"}


def test_document_is_text_or_json() -> None:
    document = Document("text", {"a": None})
    assert render(document, Style(), "n") == "text\n"
    assert json.loads(render(document, Style("json"), "n")) == {"a": None}


@pytest.mark.parametrize(
    ("octets", "unit", "text"),
    [
        (1_500_000_000, "gb", "1.5 gb"),
        (1536, "kib", "1.5 kib"),
        (7, "bytes", "7 bytes"),
        (0, "gb", "0.0 gb"),
    ],
)
def test_amounts_are_shown_in_their_unit(octets: int, unit: str, text: str) -> None:
    assert amount(octets, unit) == text
