"""Definitions are parsed item by item, with the result of the standard library's parser."""

from __future__ import annotations

import json
from random import Random

import pytest
from definitions_node import TickingClock, queue_item, turns_of_another_task

from warren.mgmt.definitions.errors import NotDefinitions
from warren.mgmt.definitions.load import parsed
from warren.mgmt.definitions.parsing import parse, parse_in_steps

DOCUMENT = """
{ "rabbit_version" : "3.10.8", "queues": [ {"name": "a", "arguments": {"x-max-length": 1e3}} ,
  {"name": "\\u00e9\\n", "durable": true}, [] , null, -1.5 ] , "empty": [ ], "none": {},
  "queues": [{"name": "b"}], "nested": [[["x"]]], "text": "a\\"],}" }
"""


def whole(octets: bytes) -> object:
    """What the standard library says: a value, or why it is none."""
    try:
        value = json.loads(octets)
    except (ValueError, RecursionError) as error:
        return str(error)
    return value if isinstance(value, dict) else "definitions should be a JSON object"


def in_steps(octets: bytes) -> object:
    try:
        return parse(octets)
    except NotDefinitions as error:
        return error.text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
def test_a_document_says_the_same_item_by_item(encoding: str) -> None:
    octets = DOCUMENT.encode(encoding)
    assert in_steps(octets) == whole(octets) != {}


@pytest.mark.parametrize(
    "octets", [b" ", b"{}", b" {} ", b"{} x", b'{"a":1,}', b'{"a":[1,]}', b"[1"]
)
def test_short_documents_say_the_same(octets: bytes) -> None:
    assert in_steps(octets) == whole(octets)


def test_damaged_documents_are_refused_in_the_same_words() -> None:
    random = Random(1)
    document = DOCUMENT.encode()
    for _ in range(2000):
        octets = bytearray(document)
        at = random.randrange(len(octets))
        end = at + random.choice((0, 1, 1, 2, 30))
        octets[at:end] = random.choice(
            (b"", b"", b",", b"]", b"}", b'"', b"[", b":", b"\xff", b"1")
        )
        assert in_steps(bytes(octets)) == whole(bytes(octets)), octets


def test_every_item_is_a_step() -> None:
    octets = json.dumps({"queues": [queue_item(f"q{number}") for number in range(100)]}).encode()
    assert sum(1 for _ in parse_in_steps(octets)) > 100


def test_clients_have_their_turns_while_definitions_are_read() -> None:
    octets = json.dumps({"queues": [queue_item(f"q{number}") for number in range(500)]}).encode()
    assert turns_of_another_task(lambda: parsed(octets, TickingClock())) > 50
