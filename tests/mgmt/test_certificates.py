"""When certificates expire, read from their files."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from warren.mgmt.certificates import expiry_times, not_after

FIRST_GENERALIZED = datetime(2050, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2030, 2, 28, 23, 59, 58, tzinfo=UTC),
        datetime(2049, 12, 31, 1, 2, 3, tzinfo=UTC),
        FIRST_GENERALIZED,
        datetime(2999, 6, 5, 4, 3, 2, tzinfo=UTC),
    ],
)
def test_both_ways_of_writing_a_time(moment: datetime) -> None:
    issued = trustme.CA().issue_cert("localhost", not_after=moment)
    assert expiry_times(issued.cert_chain_pems[0].bytes().decode()) == [moment]


def test_all_certificates_of_a_file() -> None:
    moments = [datetime(year, 1, 1, tzinfo=UTC) for year in (2030, 2040)]
    authority = trustme.CA()
    pems = [
        authority.issue_cert("localhost", not_after=moment).cert_chain_pems[0].bytes().decode()
        for moment in moments
    ]
    assert expiry_times("comment\n".join(pems)) == moments


def test_a_file_without_one() -> None:
    with pytest.raises(ValueError, match="no certificate"):
        expiry_times("-----BEGIN PRIVATE KEY-----")


@given(st.binary(max_size=64))
def test_octets_that_are_none(octets: bytes) -> None:
    with pytest.raises(ValueError):
        not_after(octets)


def test_one_that_is_cut_off() -> None:
    pem = trustme.CA().issue_cert("localhost").cert_chain_pems[0].bytes().decode()
    der = ssl.PEM_cert_to_DER_cert(pem)
    for length in range(len(der)):
        with pytest.raises(ValueError):
            not_after(der[:length])
