"""Variants, as Spark's own code reads them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal as ExactDecimal
from decimal import localcontext
from typing import Any

import pytest
from pyspark.sql.types import VariantVal

from warren.spark_export.values.variant import (
    Decimal,
    Float32,
    Timestamp,
    encode_variant,
    parse_json,
)


def back(value: Any) -> Any:
    return VariantVal(*encode_variant(value)).toPython()


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        *(
            sign * (1 << bits) - nudge
            for bits in (0, 7, 15, 31)
            for sign in (1, -1)
            for nudge in (0, 1)
        ),
        (1 << 63) - 1,
        -(1 << 63),
        0.1,
        "",
        "x" * 63,
        "x" * 64,
        "é" * 70_000,
        b"",
        bytes(300),
        [],
        {},
        [None, [1, "a"], {"b": {"a": 1}}],
        {f"field {number}": number for number in range(300)},
        list(range(70_000)),
        {"n" * 70_000: 1, "é": 2, "z": 3, "Z": 4},
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_spark_reads_is_what_was_written(value: Any) -> None:
    found = back(value)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("digits", [1, 9, 10, 18, 19, 38])
@pytest.mark.parametrize("sign", [1, -1])
def test_decimals(digits: int, sign: int) -> None:
    unscaled = sign * (10**digits - 1)
    with localcontext(prec=60):
        for scale in {0, 1, digits, 38}:
            assert back(Decimal(unscaled, scale)) == ExactDecimal(unscaled).scaleb(-scale)


def test_types_of_amqp() -> None:
    assert back(Float32(0.5)) == 0.5
    assert back(Timestamp(1_767_225_600_000_001)) == datetime(2026, 1, 1, 0, 0, 0, 1, UTC)
    assert back(1 << 64) == ExactDecimal(1 << 64)
    assert back(10**50) == 1e50


@pytest.mark.parametrize(
    "text",
    ['{"b": [1, 2.50, -0.001], "a": null}', "[]", '"x"', "12345678901234567890", "1e3", "-7"],
)
def test_json(text: str) -> None:
    found = VariantVal(*parse_json(text.encode())).toPython()
    assert found == json.loads(
        text, parse_float=lambda number: float(number) if "e" in number else ExactDecimal(number)
    )


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"Infinity", b"\xff", b"1 2"])
def test_what_is_not_json(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
